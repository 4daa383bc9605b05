//! Container logs over HTTP: every way to ask for them, to the end of a container and across rotations.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use mainstay_e2e::{PodSeen, SOON, World, sh};
use mainstay_testkit::{Flavor, capture, wait_until};
use serde_json::json;

const QUICK: &str = "crashLoopBackOff: {maxContainerRestartPeriod: 1s}";

fn lines(text: &str) -> Vec<&str> {
    text.lines().collect()
}

#[test]
fn every_parameter_of_a_log_request_does_what_it_says() {
    let world =
        World::with_config(Flavor::Debian16, "featureGates: {PodLogsQuerySplitStreams: true}").unwrap();
    // The runtime reads both streams side by side: their order is fixed only if each word waits for the one before to be told.
    let words = ["one", "two >&2", "three", "four >&2", "five"];
    let script: String = words
        .iter()
        .enumerate()
        .map(|(number, word)| format!("while [ ! -e /tmp/{number} ]; do sleep 0.1; done; echo {word}; "))
        .collect();
    let talk = sh("c", &format!("{script} while :; do sleep 1; done"));
    world.put("talk", json!({ "terminationGracePeriodSeconds": 1, "containers": [talk] })).unwrap();
    let seen = world.running("talk").unwrap();
    for (number, word) in words.iter().enumerate() {
        if number == 2 {
            // The first two lines are older than the rest.
            thread::sleep(Duration::from_millis(2500));
        }
        world.touch(&seen, "c", &format!("/tmp/{number}")).unwrap();
        world.logged("talk", "c", word.trim_end_matches(" >&2")).unwrap();
    }
    let all = "one\ntwo\nthree\nfour\nfive\n";
    assert_eq!(world.logs("talk", "c", "").unwrap(), all);
    let ask = |query: &str| world.logs("talk", "c", query).unwrap();

    assert_eq!(ask("tailLines=2"), "four\nfive\n");
    assert_eq!(ask("tailLines=0"), "");
    assert_eq!(ask("tailLines=100"), all);
    assert_eq!(ask("tail=1"), "five\n", "the older name");
    assert_eq!(ask("tail=all"), all);
    assert_eq!(ask("limitBytes=6"), "one\ntw");
    assert_eq!(ask("limitBytes=1000"), all);
    assert_eq!(ask("tailLines=2&limitBytes=4"), "four");
    assert_eq!(ask("stream=Stdout"), "one\nthree\nfive\n");
    assert_eq!(ask("stream=Stderr"), "two\nfour\n");
    assert_eq!(ask("stream=All"), all);
    assert_eq!(ask("sinceSeconds=3600"), all);
    assert_eq!(ask("follow=false&previous=false"), all);

    let stamped = ask("timestamps=true");
    let times: Vec<&str> = lines(&stamped).iter().map(|line| line.split_once(' ').unwrap().0).collect();
    let words: Vec<&str> = lines(&stamped).iter().map(|line| line.split_once(' ').unwrap().1).collect();
    assert_eq!(words, ["one", "two", "three", "four", "five"]);
    assert!(times.iter().all(|time| time.len() >= 30 && time.contains('T')), "nanoseconds: {times:?}");
    let since = ask(&format!("sinceTime={}", times[2].replace('+', "%2B")));
    assert_eq!(since, "three\nfour\nfive\n", "what is of that very moment is included");
    let since = ask(&format!("sinceTime={}&tailLines=1&timestamps=true", times[2].replace('+', "%2B")));
    assert_eq!(since, format!("{} five\n", times[4]));
    // The first two lines are at least two seconds older than the rest.
    wait_until(SOON, "the first lines to age", || {
        let got = ask("sinceSeconds=2");
        if got == all || got.contains("two") { Err(got) } else { Ok(()) }
    })
    .unwrap();

    let refused = |path: &str| {
        let answer = world.node.http().get(path).unwrap();
        (answer.status, answer.text().trim().to_owned())
    };
    let invalid = (422, r#"{"message": "Invalid request."}"#.to_owned());
    let base = "/containerLogs/default/talk-node/c";
    assert_eq!(refused(&format!("{base}?tailLines=-1")), invalid);
    assert_eq!(refused(&format!("{base}?limitBytes=0")), invalid);
    assert_eq!(refused(&format!("{base}?sinceSeconds=1&sinceTime=2026-01-01T00:00:00Z")), invalid);
    assert_eq!(refused(&format!("{base}?stream=Stdout&tailLines=1")), invalid);
    assert_eq!(
        refused(&format!("{base}?tailLines=many")),
        (400, r#"{"message": "Unable to decode query."}"#.to_owned())
    );
    let (status, text) = refused(&format!("{base}?previous=true"));
    assert_eq!(
        (status, text.as_str()),
        (400, r#"previous terminated container "c" in pod "talk-node" not found"#)
    );
    assert_eq!(
        refused("/containerLogs/default/nobody/c"),
        (404, r#"pod "nobody" does not exist"#.to_owned())
    );
    let text = r#"container "d" not found in pod "talk-node""#;
    assert_eq!(refused("/containerLogs/default/talk-node/d"), (404, text.to_owned()));
}

#[test]
fn the_previous_log_is_that_of_the_instance_before() {
    let world = World::with_config(Flavor::Debian16, QUICK).unwrap();
    // The time of its start tells one life from another.
    let script = "trap 'exit 0' TERM; echo life $(cut -d' ' -f1 /proc/uptime); while :; do sleep 0.1; done";
    world.put("lives", json!({ "containers": [sh("c", script)] })).unwrap();
    let first = world.running("lives").unwrap();
    let life = world.logged("lives", "c", "life").unwrap();
    world.containerd.crictl(&["stop", "--timeout", "60", first.id("c")]).unwrap();
    let second = world.wait("lives", "its next life", |pod| pod.restarts("c") == 1 && pod.runs("c")).unwrap();
    let now = world.logged("lives", "c", "life").unwrap();
    assert_ne!(now, life);
    assert_eq!(world.logs("lives", "c", "previous=true").unwrap(), life);
    assert_eq!(second.container("c")["lastState"]["terminated"]["exitCode"], 0);
    let config = world.crictl(&["inspect", second.id("c")]).unwrap()["info"]["config"].clone();
    assert_eq!(config["log_path"], "c/1.log");
}

#[test]
fn following_a_log_ends_when_its_container_does() {
    for flavor in Flavor::ALL {
        let world = World::start(flavor).unwrap();
        // Most of it comes while somebody reads, and its end when it is told to.
        let script = "i=0; while [ $i -lt 30 ]; do echo line $i; i=$((i+1)); sleep 0.1; done; \
                      while [ ! -e /tmp/end ]; do sleep 0.1; done; printf unfinished";
        world.put("brief", json!({ "restartPolicy": "Never", "containers": [sh("c", script)] })).unwrap();
        let seen = world.wait("brief", "its start", |pod| pod.runs("c")).unwrap();
        let body = world.node.follow_logs("default", "brief-node", "c", "", SOON).unwrap();
        let mut body = BufReader::new(body);
        let mut text = String::new();
        while !text.ends_with("line 29\n") {
            assert_ne!(body.read_line(&mut text).unwrap(), 0, "it ended after {text}");
        }
        world.touch(&seen, "c", "/tmp/end").unwrap();
        body.read_to_string(&mut text).unwrap();
        let expected: String = (0..30).map(|i| format!("line {i}\n")).collect();
        assert_eq!(text.trim_end_matches('\n'), format!("{expected}unfinished"));
        let seen = world.wait("brief", "its end", |pod| pod.exit_code("c").is_some()).unwrap();
        assert_eq!(seen.exit_code("c"), Some(0));
        // One that has ended already is read and done, also with a tail.
        let mut body = world.node.follow_logs("default", "brief-node", "c", "tailLines=2", SOON).unwrap();
        let mut text = String::new();
        body.read_to_string(&mut text).unwrap();
        assert_eq!(text.trim_end(), "line 29\nunfinished");
    }
}

/// Where the files of a container's log are.
fn log_dir(world: &World, seen: &PodSeen, container: &str) -> PathBuf {
    let name = seen.text("/metadata/name");
    world.node.pod_logs().join(format!("default_{name}_{}", seen.uid())).join(container)
}

/// They, by name.
fn log_files(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn a_follower_loses_and_repeats_no_line_across_rotations() {
    for flavor in Flavor::ALL {
        let config = "{containerLogMaxSize: 20Ki, containerLogMaxFiles: 3, containerLogMonitorInterval: 3s}";
        let world = World::with_config(flavor, config).unwrap();
        // 4000 numbered lines in about a dozen seconds, some hundred kilobytes in the log; all but the first once somebody
        // listens, or the first file might be gone by then.
        let script = "i=0; while [ $i -lt 4000 ]; do echo \"number $i is followed by some words that take room\"; i=$((i+1)); \
                      while [ ! -e /tmp/go ]; do sleep 0.1; done; [ $((i % 100)) = 0 ] && sleep 0.3; done; \
                      trap 'exit 0' TERM; while :; do sleep 0.2; done";
        world.put("chatty", json!({ "containers": [sh("c", script)] })).unwrap();
        let seen = world.running("chatty").unwrap();
        let body = world.node.follow_logs("default", "chatty-node", "c", "", SOON).unwrap();
        let mut numbers = Vec::new();
        for line in BufReader::new(body).lines() {
            let line = line.unwrap();
            let number = line.split_whitespace().nth(1).and_then(|word| word.parse::<u32>().ok());
            numbers.push(number.unwrap_or_else(|| panic!("no number in {line:?}")));
            assert!(line.ends_with("that take room"), "{line}");
            if numbers.len() == 1 {
                world.touch(&seen, "c", "/tmp/go").unwrap();
            }
            if numbers.last() == Some(&3999) {
                break;
            }
        }
        let expected: Vec<u32> = (0..4000).collect();
        let wrong = numbers.iter().zip(&expected).position(|(got, want)| got != want);
        assert_eq!(
            (numbers.len(), wrong),
            (4000, None),
            "{:?}",
            wrong.map(|at| numbers.get(at.saturating_sub(3)..at + 3))
        );

        // The one being written keeps its name, the newest of the old is left plain.
        let dir = log_dir(&world, &seen, "c");
        let files =
            wait_until(SOON, "three files, the older compressed, and the newest small enough", || {
                // Looked at first: one that is still too large would be rotated while the others are looked at.
                let size = fs::metadata(dir.join("0.log")).map_err(|error| error.to_string())?.len();
                let files = log_files(&dir);
                let names: Vec<String> = files
                    .iter()
                    .map(|file| file.file_name().unwrap().to_string_lossy().into_owned())
                    .collect();
                let is_whole = match names.as_slice() {
                    [newest, packed, plain] => {
                        newest == "0.log"
                            && [packed, plain].iter().all(|name| name.starts_with("0.log.20"))
                            && packed.ends_with(".gz")
                            && !plain.ends_with(".gz")
                    }
                    _ => false,
                };
                if is_whole && size < 20 << 10 { Ok(files) } else { Err(format!("{names:?}, {size}")) }
            })
            .unwrap();
        // What is packed can be unpacked, and goes before what is not.
        let mut gzip = std::process::Command::new("gzip");
        let packed = capture(gzip.arg("--decompress").arg("--stdout").arg(&files[1]), SOON).unwrap();
        let plain = fs::read_to_string(&files[2]).unwrap();
        let number = |line: &str| line.split_whitespace().nth(4).unwrap().parse::<u32>().unwrap();
        let last = number(packed.lines().last().unwrap());
        assert_eq!(number(plain.lines().next().unwrap()), last + 1);
        let now = world.running("chatty").unwrap();
        assert_eq!(
            (now.id("c"), now.restarts("c")),
            (seen.id("c"), 0),
            "rotation is nothing to the container"
        );
        // A plain reader gets what is left in the present file, whole lines only.
        let rest = world.logs("chatty", "c", "tailLines=1").unwrap();
        assert!(rest.is_empty() || rest.ends_with("that take room\n"), "{rest:?}");
    }
}
