//! The pod network of an instance: a bridge of its own, and the removal of every trace of it.

use crate::capture;
use crate::instance::remove_file;
use anyhow::{Context, Result};
use serde_json::json;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(60);
/// Where libcni keeps the results of its calls; the path is fixed in its source.
const RESULTS: &str = "/var/lib/cni/results";

/// What the CNI configuration of an instance says.
#[derive(Debug)]
pub(crate) struct Network<'a> {
    /// Name of the network, part of every firewall rule made for it.
    pub(crate) name: &'a str,
    pub(crate) bridge: &'a str,
    pub(crate) subnet: &'a str,
    /// One of IPv6, if pods are to have both.
    pub(crate) subnet6: Option<&'a str>,
    pub(crate) masquerade: bool,
    pub(crate) host_ports: bool,
}

impl Network<'_> {
    /// The `.conflist` for containerd; addresses are kept below `data_dir`.
    pub(crate) fn conflist(&self, data_dir: &Path) -> String {
        let mut ranges = vec![json!([{ "subnet": self.subnet }])];
        let mut routes = vec![json!({ "dst": "0.0.0.0/0" })];
        if let Some(subnet) = self.subnet6 {
            ranges.push(json!([{ "subnet": subnet }]));
            routes.push(json!({ "dst": "::/0" }));
        }
        let mut plugins = vec![json!({
            "type": "bridge",
            "bridge": self.bridge,
            "isGateway": true,
            "ipMasq": self.masquerade,
            "hairpinMode": true,
            "ipam": {
                "type": "host-local",
                "dataDir": data_dir,
                "ranges": ranges,
                "routes": routes,
            },
        })];
        if self.host_ports {
            plugins.push(json!({ "type": "portmap", "capabilities": { "portMappings": true } }));
        }
        json!({ "cniVersion": "0.4.0", "name": self.name, "plugins": plugins }).to_string()
    }
}

/// Makes the bridge with its address before the first pod does; the plugin then takes it as it is.
pub(crate) fn create(bridge: &str, address: &str) -> Result<()> {
    let ip = |args: &[&str]| capture(Command::new("ip").args(args), DEADLINE).map(drop);
    ip(&["link", "add", bridge, "type", "bridge"])
        .and_then(|()| ip(&["address", "add", address, "dev", bridge]))
        .and_then(|()| ip(&["link", "set", bridge, "up"]))
        .with_context(|| format!("cannot make the bridge {bridge}"))
}

/// Removes the bridge with its ports, the firewall rules and the cached results of a network.
pub(crate) fn remove(name: &str, bridge: &str, dir: &Path) -> Result<()> {
    for link in links(bridge) {
        // A veth goes with its other end, so it may be gone by now; the bridge is checked below.
        capture(Command::new("ip").args(["link", "delete", &link]), DEADLINE).ok();
    }
    anyhow::ensure!(!Path::new("/sys/class/net").join(bridge).exists(), "cannot delete the bridge {bridge}");
    for path in cached_results(name, dir) {
        remove_file(Path::new(&path))?;
    }
    let rules = rules(&saved_rules(), name);
    if !rules.is_empty() {
        restore(&removal(&rules, &[])).context("cannot remove firewall rules")?;
    }
    if rules.iter().any(|rule| rule.starts_with("-A CNI-HOSTPORT-DNAT "))
        && let Some(text) = removal_of_shared_chains(&saved_rules())
    {
        restore(&text).context("cannot remove the chains for host ports")?;
    }
    Ok(())
}

/// The chains that the portmap plugin makes with the first host port of a machine, and never removes.
#[derive(Debug)]
pub struct HostPortChains {
    were_there: bool,
}

impl HostPortChains {
    /// Remembers whether the machine has them.
    #[must_use]
    pub fn now() -> Self {
        Self { were_there: saved_rules().contains(":CNI-HOSTPORT-") }
    }

    /// Removes them if they were made since and nobody has a host port. Not for tests, of which one may end while another
    /// begins to use them.
    ///
    /// # Errors
    /// When the firewall refuses.
    pub fn restore(&self) -> Result<()> {
        let saved = saved_rules();
        let made = !self.were_there && saved.contains(":CNI-HOSTPORT-");
        match removal_of_shared_chains(&saved).filter(|_| made) {
            Some(text) => restore(&text).context("cannot remove the chains for host ports"),
            None => Ok(()),
        }
    }
}

/// Everything of the network that exists, in words.
pub(crate) fn leftovers(name: &str, bridge: &str, dir: &Path) -> Vec<String> {
    let links = links(bridge).into_iter().map(|link| format!("link {link}"));
    let cached = cached_results(name, dir).into_iter().map(|path| format!("file {path}"));
    links
        .chain(cached)
        .chain(rules(&saved_rules(), name).into_iter().map(|rule| format!("rule {rule}")))
        .collect()
}

/// The bridge's ports, then the bridge.
fn links(bridge: &str) -> Vec<String> {
    let path = Path::new("/sys/class/net").join(bridge);
    if !path.exists() {
        return Vec::new();
    }
    let ports = fs::read_dir(path.join("brif")).into_iter().flat_map(|entries| entries.flatten());
    ports.map(|entry| entry.file_name().to_string_lossy().into_owned()).chain([bridge.to_owned()]).collect()
}

fn cached_results(name: &str, dir: &Path) -> Vec<String> {
    let prefix = format!("{name}-");
    let dir = format!("{}/", dir.display());
    let entries = fs::read_dir(RESULTS).into_iter().flat_map(|entries| entries.flatten());
    entries
        .filter(|entry| {
            // The loopback plugin's results carry no network name, but the path of the network namespace.
            entry.file_name().to_string_lossy().starts_with(&prefix)
                || fs::read_to_string(entry.path()).is_ok_and(|text| text.contains(&dir))
        })
        .map(|entry| entry.path().to_string_lossy().into_owned())
        .collect()
}

/// The machine's NAT table; without iptables there can be no rule of ours.
fn saved_rules() -> String {
    capture(Command::new("iptables-save").args(["-t", "nat"]), DEADLINE).unwrap_or_default()
}

/// The NAT rules that name the network in their comment.
fn rules(saved: &str, name: &str) -> Vec<String> {
    let mark = format!("name: \\\"{name}\\\"");
    saved.lines().filter(|line| line.starts_with("-A ") && line.contains(&mark)).map(str::to_owned).collect()
}

/// What deletes the chains that the portmap plugin makes once and never removes, if nobody has a host port any
/// more. The plugin makes them anew whenever it needs them.
fn removal_of_shared_chains(saved: &str) -> Option<String> {
    if saved.lines().any(|line| line.starts_with("-A CNI-HOSTPORT-DNAT ")) {
        return None;
    }
    let chains: Vec<&str> = saved
        .lines()
        .filter_map(|line| line.strip_prefix(':')?.split(' ').next())
        .filter(|chain| chain.starts_with("CNI-HOSTPORT-"))
        .collect();
    let of_the_plugin = |line: &&str| line.starts_with("-A ") && line.contains("CNI-HOSTPORT-");
    let rules: Vec<String> = saved.lines().filter(of_the_plugin).map(str::to_owned).collect();
    Some(removal(&rules, &chains))
}

/// Input for `iptables-restore` that deletes the rules, the chains of plugins they lead to, and more chains.
fn removal(rules: &[String], more_chains: &[&str]) -> String {
    let mut text = String::from("*nat\n");
    for rule in rules {
        text.push_str(&rule.replacen("-A", "-D", 1));
        text.push('\n');
    }
    let mut chains: Vec<&str> = rules
        .iter()
        .filter_map(|rule| rule.rsplit_once(" -j ")?.1.split_whitespace().next())
        .filter(|chain| chain.starts_with("CNI-"))
        .chain(more_chains.iter().copied())
        .collect();
    chains.sort_unstable();
    chains.dedup();
    for chain in &chains {
        text.push_str(&format!("-F {chain}\n"));
    }
    for chain in &chains {
        text.push_str(&format!("-X {chain}\n"));
    }
    text.push_str("COMMIT\n");
    text
}

fn restore(text: &str) -> Result<()> {
    let mut file = tempfile::NamedTempFile::new()?;
    file.write_all(text.as_bytes())?;
    capture(Command::new("iptables-restore").arg("--noflush").arg(file.path()), DEADLINE).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_and_their_chains_are_deleted() {
        let rules = [
            r#"-A POSTROUTING -s 10.88.0.2/32 -m comment --comment "name: \"n\" id: \"1\"" -j CNI-aa"#
                .to_owned(),
            r#"-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"n\" id: \"1\"" -j CNI-DN-bb"#
                .to_owned(),
            r#"-A CNI-aa -d 10.88.0.0/22 -m comment --comment "name: \"n\" id: \"1\"" -j ACCEPT"#.to_owned(),
        ];
        let text = removal(&rules, &[]);
        assert!(text.starts_with("*nat\n-D POSTROUTING -s 10.88.0.2/32 "), "{text}");
        assert!(text.ends_with("-F CNI-DN-bb\n-F CNI-aa\n-X CNI-DN-bb\n-X CNI-aa\nCOMMIT\n"), "{text}");
    }

    #[test]
    fn shared_chains_go_with_the_last_host_port() {
        let saved = ":OUTPUT ACCEPT [0:0]\n:CNI-HOSTPORT-DNAT - [0:0]\n:CNI-HOSTPORT-SETMARK - [0:0]\n\
                     -A OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT\n\
                     -A CNI-HOSTPORT-SETMARK -j MARK --set-xmark 0x2000/0x2000\n";
        let text = removal_of_shared_chains(saved).unwrap();
        assert!(text.contains("-D OUTPUT ") && text.contains("-X CNI-HOSTPORT-DNAT\n"), "{text}");
        assert!(text.contains("-X CNI-HOSTPORT-SETMARK\n") && !text.contains("-X MARK"), "{text}");
        let used = format!("{saved}-A CNI-HOSTPORT-DNAT -p tcp -j CNI-DN-1\n");
        assert_eq!(removal_of_shared_chains(&used), None);
    }
}
