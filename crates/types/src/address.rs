//! Addresses of pods and nodes.

use std::net::IpAddr;

/// One address of each kind, IPv4 or IPv6, the kind of the node's first address first: a runtime may name them in any order (upstream:
/// `sortPodIPs` in `pkg/kubelet/kubelet_pods.go`). IPv4 comes first where the node has none. What is no address is left out.
#[must_use]
pub fn in_node_order(ips: &[String], node_ips: &[String]) -> Vec<String> {
    let parsed: Vec<IpAddr> = ips.iter().filter_map(|ip| ip.parse().ok()).collect();
    let six_first = node_ips.first().and_then(|ip| ip.parse().ok()).is_some_and(|ip: IpAddr| ip.is_ipv6());
    let kinds = [six_first, !six_first];
    kinds
        .into_iter()
        .filter_map(|six| parsed.iter().find(|ip| ip.is_ipv6() == six))
        .map(ToString::to_string)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nodes_kind_comes_first() {
        let rows: [(&str, &str, &str, &str); 10] = [
            ("one of each on an IPv4 node", "10.0.0.1 fd00::1", "192.0.2.1", "10.0.0.1 fd00::1"),
            ("the runtime's order is another", "fd00::1 10.0.0.1", "192.0.2.1", "10.0.0.1 fd00::1"),
            ("an IPv6 node", "10.0.0.1 fd00::1", "2001:db8::1", "fd00::1 10.0.0.1"),
            (
                "an IPv6 node with IPv4 as well",
                "10.0.0.1 fd00::1",
                "2001:db8::1 192.0.2.1",
                "fd00::1 10.0.0.1",
            ),
            ("a node without addresses", "fd00::1 10.0.0.1", "", "10.0.0.1 fd00::1"),
            ("only IPv6", "fd00::1", "192.0.2.1", "fd00::1"),
            ("only IPv4", "10.0.0.1", "2001:db8::1", "10.0.0.1"),
            ("the first of a kind", "10.0.0.2 10.0.0.1 fd00::2 fd00::1", "192.0.2.1", "10.0.0.2 fd00::2"),
            ("written as nobody writes it", "FD00:0::0001", "2001:db8::1", "fd00::1"),
            ("no address", "?", "192.0.2.1", ""),
        ];
        let list = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        for (row, ips, node, expected) in rows {
            assert_eq!(in_node_order(&list(ips), &list(node)), list(expected), "{row}");
        }
    }
}
