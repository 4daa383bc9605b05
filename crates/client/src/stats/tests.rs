use super::*;

#[test]
fn sizes_and_cores_as_people_read_them() {
    for (bytes, expected) in [
        (0, "0"),
        (1023, "1023"),
        (1024, "1.0Ki"),
        (1536, "1.5Ki"),
        ((10 << 20) - 1, "9.9Mi"),
        (64 << 20, "64Mi"),
        (5 << 40, "5.0Ti"),
        (u64::MAX, "16777215Ti"),
    ] {
        assert_eq!(size(Some(bytes)), expected, "{bytes}");
    }
    assert_eq!(size(None), "-");
    for (nanos, expected) in [(0, "0m"), (1, "1m"), (1_500_000, "2m"), (2_000_000_000, "2000m")] {
        assert_eq!(cores(Some(nanos)), expected);
    }
    assert_eq!(cores(None), "-");
}

#[test]
fn io_is_added_up_by_whom_it_is_of() {
    let labels = |container: &str, id: &str, image: &str, pod: &str, device: &str| {
        format!(
            "container=\"{container}\",device=\"{device}\",id=\"{id}\",image=\"{image}\",name=\"\",namespace=\"{}\",pod=\"{pod}\"",
            if pod.is_empty() { "" } else { "default" }
        )
    };
    let text = [
        (READ, labels("", "/", "", "", "/dev/sda"), "1e+06"),
        (READ, labels("", "/", "", "", "/dev/sdb"), "5"),
        (READ, labels("", "/kubepods", "", "", "/dev/sda"), "7"),
        (WRITTEN, labels("", "/kubepods/podu", "", "web", "/dev/sda"), "30"),
        (WRITTEN, labels("", "/kubepods/podu/s", "pause", "web", "/dev/sda"), "10"),
        (WRITTEN, labels("main", "/kubepods/podu/c", "busybox", "web", "/dev/sda"), "20"),
    ]
    .map(|(name, labels, value)| format!("{name}{{{labels}}} {value} 1700000000000\n"))
    .concat();
    let table = io_table(&format!("# HELP {READ} Help.\n{text}"));
    assert_eq!(io_of(&table, "", "", ""), Some(Io { read: 1_000_005, written: 0 }));
    assert_eq!(io_of(&table, "default", "web", ""), Some(Io { read: 0, written: 30 }));
    assert_eq!(io_of(&table, "default", "web", "main"), Some(Io { read: 0, written: 20 }));
    assert_eq!(table.len(), 3);
}
