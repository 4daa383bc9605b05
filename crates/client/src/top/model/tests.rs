use serde_json::json;

use super::{
    super::draw::{Look, ansi, plain, screen, spark},
    *,
};

const SIZE: Size = Size { columns: 140, rows: 14 };

fn item(name: &str, restarts: u32, ready: bool) -> Item {
    let value = json!({
        "metadata": { "name": name, "namespace": "default", "uid": name },
        "spec": { "containers": [{ "name": "main" }, { "name": "side" }] },
        "status": {
            "phase": "Running",
            "containerStatuses": [
                { "name": "main", "image": "i", "imageID": "i", "restartCount": restarts, "ready": ready, "started": true, "state": { "running": {} } },
                { "name": "side", "image": "i", "imageID": "i", "restartCount": 0, "ready": false, "started": false, "state": { "running": {} } },
            ],
        },
    });
    serde_json::from_value(value).unwrap()
}

/// Two pods, at a time in seconds.
fn reading(second: i64) -> Reading {
    let time = |second: i64| Timestamp::from_second(1_800_000_000 + second).unwrap().to_string();
    let cpu = |millis: i64| json!({ "time": time(second), "usageNanoCores": millis * 1_000_000 });
    let memory = |mib: u64| json!({ "workingSetBytes": mib << 20, "availableBytes": 1_u64 << 30 });
    let network =
        |bytes: i64| json!({ "interfaces": [{ "name": "eth0", "rxBytes": bytes, "txBytes": bytes / 2 }] });
    let pod = |name: &str, millis: i64, mib: u64, moved: i64| {
        json!({
            "podRef": { "name": name, "namespace": "default", "uid": name },
            "cpu": cpu(millis), "memory": memory(mib), "network": network(moved),
            "ephemeral-storage": { "usedBytes": 4096 },
            "containers": [{ "name": "main", "cpu": cpu(millis), "memory": memory(mib) }, { "name": "side" }],
        })
    };
    let summary = json!({
        "node": {
            "nodeName": "machine", "cpu": cpu(700), "memory": memory(3000), "network": network(second * 1000),
            "fs": { "usedBytes": 5_u64 << 30, "availableBytes": 50_u64 << 30 },
        },
        "pods": [pod("busy", 500 + second, 10, second * 2048), pod("large", 20, 900, 0)],
    });
    let node = json!({
        "metadata": {}, "status": {
            "capacity": { "cpu": "2" },
            "conditions": [
                { "type": "Ready", "status": "True" },
                { "type": "MemoryPressure", "status": "True" },
                { "type": "DiskPressure", "status": "False" },
            ],
        },
    });
    let node: Node = serde_json::from_value(node).unwrap();
    let pods = [item("busy", 0, true), item("large", 3, false), item("waiting", 0, false)];
    Reading::of(&summary, &IoTable::new(), &pods, Some(&node)).unwrap()
}

fn model() -> Model {
    let mut model = Model::new(StatsOrder::Cpu, None);
    model.take(reading(0));
    model.take(reading(10));
    model
}

fn text(model: &Model) -> String {
    screen(model, SIZE).iter().map(|line| format!("{}\n", line.text.trim_end())).collect()
}

#[test]
fn the_whole_screen() {
    let expected = "\
machine   3 pods   MEMORYPRESSURE
cpu 700m of 2000m ▄▄   memory 2.9Gi, 1.0Gi free
disk 5.0Gi, 50Gi free   read -/s written -/s   received 1000/s sent 500/s
 POD             READY STATUS            RST     CPU               MEMORY    READ   WRITE      RX      TX    DISK
+default/busy      1/2 Running             0    510m ██              10Mi       -       -   2.0Ki   1.0Ki   4.0Ki
+default/large     0/2 Running             3     20m ██             900Mi       -       -       0       0   4.0Ki
+default/waiting   0/2 Running             0       -                    -       -       -       -       -       -




 sorted by cpu   ?: help   enter: containers   l: log   q: leave
";
    // Lines of an empty screen between list and foot.
    let found = text(&model());
    let squeeze =
        |text: &str| text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(squeeze(&found), squeeze(expected), "{found}");
    assert_eq!(found.lines().count(), SIZE.rows);
}

#[test]
fn keys_sort_open_and_select() {
    let mut model = model();
    model.press(Key::Sort('m'), SIZE);
    let order = |model: &Model| model.reading.pods.iter().map(|pod| pod.name.clone()).collect::<Vec<_>>();
    assert_eq!(order(&model), ["large", "busy", "waiting"]);
    model.press(Key::Sort('n'), SIZE);
    assert_eq!(order(&model), ["busy", "large", "waiting"], "what moves now");
    model.press(Key::Sort('r'), SIZE);
    assert_eq!(order(&model)[0], "large");
    model.press(Key::First, SIZE);
    model.press(Key::Open, SIZE);
    let shown = text(&model);
    assert!(shown.contains("-default/large"), "{shown}");
    assert!(shown.contains("   main") && shown.contains("NotReady") && shown.contains("Starting"), "{shown}");
    let selected = |model: &Model| {
        let lines = screen(model, SIZE);
        lines.into_iter().find(|line| line.look == Look::Selected).map(|line| line.text).unwrap()
    };
    assert!(selected(&model).contains("large"));
    model.press(Key::Down, SIZE);
    assert!(selected(&model).contains("main"));
    // What is selected stays so when others come before it.
    model.press(Key::Sort('c'), SIZE);
    assert!(selected(&model).contains("main"));
    let asked = model.press(Key::Log, SIZE);
    let log = |container: &str| Request::Log {
        namespace: "default".into(),
        pod: "large".into(),
        container: container.into(),
    };
    assert_eq!(asked, Some(log("main")));
    model.show_log(Ok((0..50).map(|at| format!("line {at}\x1b[2J\n")).collect()));
    let shown = text(&model);
    assert!(shown.contains("LOG of main in default/large") && shown.contains("line 49"), "{shown}");
    assert!(!shown.contains('\x1b'), "what a container writes does nothing to the terminal");
    model.press(Key::First, SIZE);
    assert!(text(&model).contains("line 0") && !text(&model).contains("line 49"));
    model.press(Key::Back, SIZE);
    model.press(Key::Back, SIZE);
    assert!(text(&model).contains("+default/large"), "closed again");
    model.press(Key::Help, SIZE);
    assert!(text(&model).contains("KEYS") && text(&model).contains("Ctrl-C"));
}

#[test]
fn small_screens_trouble_and_pods_that_go() {
    let mut model = model();
    for (columns, rows) in [(1, 1), (10, 3), (20, 5), (500, 200)] {
        let size = Size { columns, rows };
        for key in [Key::Last, Key::PageUp, Key::Open, Key::Help, Key::Back, Key::Log, Key::PageUp, Key::Back]
        {
            model.press(key, size);
            let lines = screen(&model, size);
            assert!(
                lines.len() <= rows.max(1) && lines.iter().all(|line| line.text.chars().count() <= columns)
            );
        }
    }
    model.trouble("no mainstay answers".into());
    assert!(text(&model).contains("old: no mainstay answers"));
    model.take(Reading::default());
    assert!(text(&model).contains("no pods") && !text(&model).contains("old:"));
    assert!(model.pasts.is_empty() && model.open.is_empty());
    for key in [Key::Down, Key::Open, Key::Log, Key::Last] {
        assert_eq!(model.press(key, SIZE), None);
    }
}

#[test]
fn one_namespace_and_plain_text() {
    let mut model = Model::new(StatsOrder::Name, Some("other".into()));
    model.take(reading(0));
    assert!(model.reading.pods.is_empty());
    let found = plain(&self::model(), true);
    assert!(found.contains("default/busy") && found.contains("  side") && !found.contains('\x1b'), "{found}");
    assert!(ansi(&screen(&self::model(), SIZE)).starts_with("\x1b[H\x1b[1mmachine"));
}

#[test]
fn counters_that_go_back_and_readings_of_the_same_time() {
    let mut past = Past::default();
    let usage =
        |bytes| Usage { network: Some((bytes, bytes)), nano_cores: Some(5_000_000), ..Usage::default() };
    let at = |second| Timestamp::from_second(second).ok();
    past.add(at(1), usage(100));
    past.add(at(1), usage(900));
    assert_eq!((past.cpu.len(), past.rates.received), (1, None));
    past.add(at(3), usage(300));
    assert_eq!(past.rates.received, Some(100));
    past.add(at(4), usage(10));
    assert_eq!(past.rates.received, None, "it began anew");
    for second in 5..100 {
        past.add(at(second), usage(0));
    }
    assert_eq!(past.cpu.len(), PAST);
}

#[test]
fn lines_of_the_past() {
    for (values, most, expected) in [
        (&[][..], None, ""),
        (&[0, 0], None, "▁▁"),
        (&[0, 1, 50, 100], None, "▁▂▅█"),
        (&[500, 2000, 9000], Some(2000), "▃██"),
        (&[u64::MAX, 1], None, "█▂"),
    ] {
        assert_eq!(spark(values, most), expected, "{values:?}");
    }
}
