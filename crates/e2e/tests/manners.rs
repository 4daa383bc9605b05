//! What a node asks of its API server, and how it takes what it is told: as little as upstream's kubelet, and no less.

use anyhow::{Result, ensure};
use mainstay_e2e::{
    idle,
    member::{Member, PODS},
    seen::PATIENCE,
};
use mainstay_testkit::wait_until;
use serde_json::json;

/// How many requests of a kind the API server has counted, from all its clients.
fn counted(member: &Member, verb: &str, resource: &str, part: &str) -> Result<u64> {
    let answer = member.plane.send("GET", "/metrics", None)?;
    ensure!(answer.status == 200, "/metrics of the API server: {}", answer.status);
    let wanted =
        [format!("verb=\"{verb}\""), format!("resource=\"{resource}\""), format!("subresource=\"{part}\"")];
    let text = answer.text();
    let lines = text.lines().filter_map(|line| line.strip_prefix("apiserver_request_total{"));
    let ours = lines.filter(|line| wanted.iter().all(|label| line.contains(label)));
    let values = ours.map(|line| line.rsplit(' ').next().unwrap_or_default().parse::<f64>());
    let sum: f64 = values.sum::<Result<f64, _>>()?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a counter, written as a float"
    )]
    Ok(sum as u64)
}

/// Waits until no pod's status in the API server lags behind the node's own.
fn all_told(member: &Member, pods: &[String]) -> Result<()> {
    wait_until(3 * PATIENCE, "every status to be told", || {
        for name in pods {
            let (own, there) = (member.own(name)?, member.get(&format!("{PODS}/{name}"))?);
            for field in ["phase", "podIPs", "containerStatuses", "initContainerStatuses"] {
                if own["status"][field] != there["status"][field] {
                    return Err(format!("{name}: {field} is {own} here and {there} there"));
                }
            }
        }
        Ok(())
    })
}

#[test]
fn a_pods_life_costs_few_requests() -> Result<()> {
    let member = Member::start("{}")?;
    let names: Vec<String> = (0..8).map(|number| format!("plain-{number}")).collect();
    let patches = || counted(&member, "PATCH", "pods", "status");
    let before = patches()?;
    for name in &names {
        let spec = json!({ "terminationGracePeriodSeconds": 1, "containers": [idle("a")] });
        member.bind(name, spec)?;
    }
    for name in &names {
        member.ready(name)?;
    }
    all_told(&member, &names)?;
    let many = u64::try_from(names.len())?;
    let up = patches()? - before;
    // That it is being made, that its sandbox is there (if its container is long in coming), that it is ready: upstream's
    // kubelet needs three and a bit.
    ensure!((many..=3 * many).contains(&up), "{up} patches for {many} pods to become Ready");
    let before = patches()?;
    for name in &names {
        member.delete(&format!("{PODS}/{name}"), "gracePeriodSeconds=1")?;
    }
    for name in &names {
        member.gone(&format!("{PODS}/{name}"))?;
    }
    let down = patches()? - before;
    ensure!((many..=3 * many).contains(&down), "{down} patches for {many} pods to end");
    println!("{many} pods: {up} patches to become Ready, {down} to end");
    Ok(())
}
