module probe-target

go 1.26
