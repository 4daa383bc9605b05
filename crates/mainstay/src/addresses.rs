//! The node's addresses: given, or found out in upstream's order (`pkg/kubelet/nodestatus/setters.go` of 1.37).

use std::{
    net::{IpAddr, UdpSocket},
    sync::Arc,
    time::Duration,
};

use mainstay_task::TaskGroup;
use tokio::{net::lookup_host, sync::watch, time::timeout};
use tracing::{info, warn};

/// How often they are looked at.
const LOOK: Duration = Duration::from_secs(10);
/// And while there are none.
const LOOK_SOON: Duration = Duration::from_secs(1);
/// How long the start waits for what the node's name stands for: a resolver that is away must hold up nobody.
const FIRST_LOOK_UP: Duration = Duration::from_millis(250);
/// How long is waited later.
const LOOK_UP: Duration = Duration::from_secs(5);

/// What addresses are found by.
struct Finder {
    node_ip: String,
    node_name: Arc<str>,
    /// What the name stood for when it was last looked up with success; a resolver that is away is no news.
    named: Vec<IpAddr>,
    warned: bool,
}

/// The addresses as they are, and as they change: a lease that came late or another network must not leave pods with an address that
/// nobody has. Asking takes a few system calls and a look at the node's name, and sends nothing else.
pub(crate) async fn follow(
    node_ip: &str,
    node_name: &Arc<str>,
    tasks: &TaskGroup,
) -> watch::Receiver<Arc<[String]>> {
    let mut finder = Finder {
        node_ip: node_ip.to_owned(),
        node_name: Arc::clone(node_name),
        named: Vec::new(),
        warned: false,
    };
    let first: Arc<[String]> = finder.find(FIRST_LOOK_UP).await.into();
    let (sender, addresses) = watch::channel(first);
    let shutdown = tasks.shutdown();
    tasks.spawn_critical("addresses", async move {
        loop {
            let wait = if sender.borrow().is_empty() { LOOK_SOON } else { LOOK };
            let look = async {
                tokio::time::sleep(wait).await;
                finder.find(LOOK_UP).await
            };
            let Some(found) = shutdown.run_until_signalled(Box::pin(look)).await else { return };
            let found: Arc<[String]> = found.into();
            // None is no news: the machine keeps its last name while a cable is out, as upstream's node does.
            if !found.is_empty() && *sender.borrow() != found {
                info!(?found, "the node has other addresses");
                sender.send_replace(found);
            }
        }
    });
    addresses
}

/// Whether `--node-ip` names no address but a kind of address.
pub(crate) fn is_any(node_ip: &str) -> bool {
    node_ip.trim().parse().is_ok_and(|ip: IpAddr| ip.is_unspecified())
}

impl Finder {
    /// `--node-ip`, as far as the machine has it; else the name, if it is an address; else of each kind what the name stands for on this
    /// machine, or the address that packets to the outside come from. IPv4 first, or the kind that `0.0.0.0` or `::` names.
    async fn find(&mut self, patience: Duration) -> Vec<String> {
        let text = |all: Vec<IpAddr>| all.iter().map(ToString::to_string).collect();
        if !self.node_ip.is_empty() && !is_any(&self.node_ip) {
            let given: Vec<IpAddr> =
                self.node_ip.split(',').filter_map(|ip| ip.trim().parse().ok()).collect();
            let (here, absent): (Vec<_>, Vec<_>) = given.into_iter().partition(|ip| is_on_an_interface(*ip));
            if absent.is_empty() {
                self.warned = false;
            } else if !std::mem::replace(&mut self.warned, true) {
                warn!(
                    ?absent,
                    "no interface of this machine has what --node-ip gives; it is not told until one has: correct it or add the address"
                );
            }
            return text(here);
        }
        if let Ok(ip) = self.node_name.parse::<IpAddr>() {
            return text(vec![ip]);
        }
        // Cancel safe: whoever is not waited for any longer ends by himself.
        if let Ok(Ok(found)) = timeout(patience, lookup_host((&*self.node_name, 0))).await {
            self.named = found.map(|it| it.ip()).filter(|ip| is_of_a_node(*ip)).collect();
        }
        self.named.retain(|ip| is_on_an_interface(*ip));
        let mut kinds = [false, true];
        if self.node_ip.trim().parse().is_ok_and(|ip: IpAddr| ip.is_ipv6()) {
            kinds.reverse();
        }
        let of_kind = |six: bool| {
            let named = self.named.iter().copied().find(|ip| ip.is_ipv6() == six);
            named.or_else(|| outward(six))
        };
        text(kinds.into_iter().filter_map(of_kind).collect())
    }
}

/// The address that packets to the outside come from. Connecting a datagram socket only asks the kernel for a route. The addresses are
/// documentation ones.
fn outward(six: bool) -> Option<IpAddr> {
    let (local, remote) = if six { ("[::]:0", "[2001:db8::1]:9") } else { ("0.0.0.0:0", "192.0.2.1:9") };
    let socket = UdpSocket::bind(local).ok()?;
    socket.connect(remote).ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_loopback() && !ip.is_unspecified()).then_some(ip)
}

/// Only who has an address can wait for packets on it.
fn is_on_an_interface(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).is_ok()
}

/// Whether others can mean a node by it. Debian's `/etc/hosts` has 127.0.1.1 for a machine's own name.
fn is_of_a_node(ip: IpAddr) -> bool {
    let is_local = match ip {
        IpAddr::V4(four) => four.is_link_local(),
        IpAddr::V6(six) => six.is_unicast_link_local(),
    };
    !ip.is_loopback() && !ip.is_unspecified() && !ip.is_multicast() && !is_local
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn found(node_ip: &str, node_name: &str) -> Vec<String> {
        let mut finder = Finder {
            node_ip: node_ip.to_owned(),
            node_name: node_name.into(),
            named: Vec::new(),
            warned: false,
        };
        finder.find(LOOK_UP).await
    }

    #[tokio::test]
    async fn they_are_found_in_upstreams_order() {
        let nobodys = "203.0.113.77";
        assert_eq!(found("127.0.0.2", "n").await, ["127.0.0.2"]);
        assert_eq!(found("127.0.0.2", "192.0.2.7").await, ["127.0.0.2"], "what is given comes first");
        assert!(found(nobodys, "n").await.is_empty(), "no interface has it");
        assert_eq!(found(&format!("{nobodys},127.0.0.3"), "n").await, ["127.0.0.3"]);
        assert_eq!(found("", "192.0.2.7").await, ["192.0.2.7"], "a name that is an address");
        let outside: Vec<String> =
            [false, true].into_iter().filter_map(outward).map(|ip| ip.to_string()).collect();
        // By /etc/hosts this is the machine itself, which is no address for others; and the other is nobody.
        for name in ["localhost", "no-such-machine.invalid"] {
            assert_eq!(found("", name).await, outside, "{name}");
        }
        let reversed: Vec<String> = outside.iter().rev().cloned().collect();
        assert_eq!(found("::", "no-such-machine.invalid").await, reversed);
    }

    #[test]
    fn what_a_name_stands_for_may_be_of_no_use() {
        for (ip, expected) in [
            ("10.0.0.1", true),
            ("fd00::1", true),
            ("127.0.1.1", false),
            ("::1", false),
            ("169.254.1.1", false),
            ("fe80::1", false),
            ("224.0.0.1", false),
            ("0.0.0.0", false),
        ] {
            assert_eq!(is_of_a_node(ip.parse().unwrap()), expected, "{ip}");
        }
    }

    /// A resolver that is away does not take a name back that it told before.
    #[tokio::test]
    async fn what_the_name_stood_for_holds_while_nobody_can_be_asked() {
        let mut finder = Finder {
            node_ip: String::new(),
            node_name: "no-such-machine.invalid".into(),
            named: vec!["127.0.0.9".parse().unwrap(), "203.0.113.77".parse().unwrap()],
            warned: false,
        };
        assert_eq!(finder.find(LOOK_UP).await.first().map(String::as_str), Some("127.0.0.9"));
        assert_eq!(finder.named.len(), 1, "what no interface has any more is forgotten");
    }
}
