//! `mainstay pods`.

use super::*;

#[tokio::test]
async fn pods_as_tables() {
    let fixture = Fixture::start();
    fixture.publish(&[]);
    let ran = fixture.run(&["pods"]).await;
    assert_eq!((ran.code, ran.out.text().as_str(), ran.err.text().as_str()), (0, "", "No resources found\n"));

    fixture.publish(&[
        pod("shop", "cart", json!({"phase": "Pending", "startTime": ago(1230)})),
        pod("default", "web", running(930)),
        pod("default", "crash", crashing()),
    ]);
    assert_eq!(
        fixture.run(&["pods"]).await.printed(),
        "NAMESPACE   NAME          READY   STATUS             RESTARTS      AGE\n\
         default     crash-node1   0/1     CrashLoopBackOff   4 (12m ago)   50m\n\
         default     web-node1     1/1     Running            0             15m\n\
         shop        cart-node1    0/1     Pending            0             20m\n"
    );
    assert_eq!(
        fixture.run(&["pods", "-n", "default", "-o", "wide", "-l", "app=web"]).await.printed(),
        "NAME        READY   STATUS    RESTARTS   AGE   IP         NODE    NOMINATED NODE   READINESS GATES\n\
         web-node1   1/1     Running   0          15m   10.9.0.5   node1   <none>           <none>\n"
    );
    assert_eq!(
        fixture.run(&["po", "-A", "--no-headers", "-l", "app!=web,app!=crash"]).await.printed(),
        "shop   cart-node1   0/1   Pending   0   20m\n"
    );
    assert_eq!(fixture.run(&["pods", "-o", "name", "-n", "shop"]).await.printed(), "pod/cart-node1\n");
    assert_eq!(
        fixture.run(&["pods", "-o", "name", "web", "shop/cart"]).await.printed(),
        "pod/web-node1\npod/cart-node1\n"
    );
    let ran = fixture.run(&["pods", "-n", "none"]).await;
    assert_eq!(ran.err.text(), "No resources found in none namespace.\n");
    let error = fixture.run(&["pods", "wbe"]).await.failed(1);
    assert_eq!(error, "error: there is no pod wbe; did you mean default/web-node1?\n");
    let error = fixture.run(&["pods", "-l", "app in web"]).await.failed(2);
    assert!(error.contains("write it as app=web,tier in (a,b)"), "{error}");
}

#[tokio::test]
async fn pods_as_data() {
    let fixture = Fixture::start();
    fixture.publish(&[pod("default", "web", running(930)), pod("shop", "cart", json!({"phase": "Pending"}))]);
    let printed = fixture.run(&["pods", "-o", "json"]).await.printed();
    let list: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!((list["kind"].as_str(), list["items"].as_array().unwrap().len()), (Some("List"), 2));
    assert_eq!(
        (list["items"][0]["kind"].as_str(), list["items"][0]["apiVersion"].as_str()),
        (Some("Pod"), Some("v1"))
    );
    assert!(printed.starts_with("{\n    \"apiVersion\": \"v1\",\n"), "{printed}");
    let one: Value =
        serde_json::from_str(&fixture.run(&["pods", "-o", "json", "web"]).await.printed()).unwrap();
    assert_eq!((one["kind"].as_str(), one["metadata"]["name"].as_str()), (Some("Pod"), Some("web-node1")));
    let printed = fixture.run(&["pods", "-o", "yaml", "web"]).await.printed();
    assert!(printed.starts_with("apiVersion: v1\nkind: Pod\nmetadata:\n"), "{printed}");
    let list: Value = serde_yaml_ng::from_str(&fixture.run(&["pods", "-o", "yaml"]).await.printed()).unwrap();
    assert_eq!(list["items"][1]["metadata"]["namespace"], "shop");
}

#[tokio::test]
async fn pods_are_watched_across_a_restart() {
    let fixture = Fixture::start();
    let (web, old) = (pod("default", "web", running(930)), pod("default", "old", running(930)));
    fixture.publish(&[web, old.clone()]);
    let (command, mut output, ran) = fixture.prepare(&["pods", "-w"]);
    let steps = async {
        ran.wait(|text| text.lines().count() == 3).await;
        let (web, db) = (pod("default", "web", crashing()), pod("default", "db", running(930)));
        fixture.publish(&[web.clone(), db.clone(), old]);
        ran.wait(|text| text.contains("CrashLoopBackOff") && text.contains("db-node1")).await;
        let fixture = fixture.restart().await;
        // Nothing is complete yet: the watch waits for that, too.
        tokio::time::sleep(Duration::from_millis(700)).await;
        assert!(!ran.err.text().contains("is back"), "{}", ran.err.text());
        fixture.publish(&[web, db, pod("default", "new", running(930))]);
        ran.wait(|text| text.contains("new-node1")).await;
        fixture
    };
    let fixture = tokio::select! {
        result = execute(command, &mut output) => panic!("{result:?}"),
        fixture = steps => fixture,
    };
    assert_eq!(
        ran.out.text(),
        "NAMESPACE   NAME                       READY   STATUS                  RESTARTS          AGE\n\
         default     old-node1                  1/1     Running                 0                 15m\n\
         default     web-node1                  1/1     Running                 0                 15m\n\
         default     db-node1                   1/1     Running                 0                 15m\n\
         default     web-node1                  0/1     CrashLoopBackOff        4 (12m ago)       50m\n\
         default     new-node1                  1/1     Running                 0                 15m\n"
    );
    assert_eq!(
        ran.err.text(),
        "mainstay has ended; waiting for it to come back (Ctrl-C ends this)\nmainstay is back\npod default/old-node1 is gone\n"
    );
    fixture.tasks.drain(PATIENCE).await;
}

#[tokio::test]
async fn a_watch_waits_for_the_first_complete_list() {
    let fixture = Fixture::start();
    let (command, mut output, ran) = fixture.prepare(&["pods", "-w"]);
    let steps = async {
        while !ran.err.text().contains("mainstay has just started; waiting") {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        fixture.publish(&[pod("default", "web", running(930))]);
        ran.wait(|text| text.contains("web-node1")).await;
    };
    tokio::select! {
        result = execute(command, &mut output) => panic!("{result:?}"),
        done = tokio::time::timeout(PATIENCE, steps) => done.unwrap(),
    }
    fixture.tasks.drain(PATIENCE).await;
}
