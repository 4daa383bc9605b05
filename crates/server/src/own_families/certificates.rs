//! The certificates that the node shows: to the API server, and at its own secure port.

use jiff::Timestamp;
use mainstay_types::CertificateCounts;

use super::Family;
use crate::exposition::Kind;

pub(super) const FAMILIES: &[Family] = &[
    Family {
        name: "kubelet_certificate_manager_client_expiration_renew_errors",
        help: "[ALPHA] Counter of certificate renewal errors.",
        kind: Kind::Counter,
        write: |lines, source| {
            if let Some((_, calls)) = source.counters.api.get() {
                lines.count(&[], calls.certificate.errors.get());
            }
        },
    },
    Family {
        name: "kubelet_certificate_manager_client_ttl_seconds",
        help: "[ALPHA] Gauge of the TTL (time-to-live) of the Kubelet's client certificate. The value is in seconds until certificate expiry (negative if already expired). If client certificate is invalid or unused, the value will be +INF.",
        kind: Kind::Gauge,
        write: |lines, source| {
            lines.put(&[], seconds_left(source.counters.api.get().map(|(_, calls)| &calls.certificate)));
        },
    },
    Family {
        name: "kubelet_certificate_manager_server_rotation_seconds",
        help: "[ALPHA] Histogram of the number of seconds the previous certificate lived before being rotated.",
        kind: Kind::Histogram,
        write: |lines, source| lines.durations(&[], source.counters.serving_certificate.lives.read()),
    },
    Family {
        name: "kubelet_certificate_manager_server_ttl_seconds",
        help: "[ALPHA] Gauge of the shortest TTL (time-to-live) of the Kubelet's serving certificate. The value is in seconds until certificate expiry (negative if already expired). If serving certificate is invalid or unused, the value will be +INF.",
        kind: Kind::Gauge,
        write: |lines, source| lines.put(&[], seconds_left(Some(&source.counters.serving_certificate))),
    },
    Family {
        name: "kubelet_server_expiration_renew_errors",
        help: "[ALPHA] Counter of certificate renewal errors.",
        kind: Kind::Counter,
        write: |lines, source| lines.count(&[], source.counters.serving_certificate.errors.get()),
    },
];

#[expect(clippy::cast_precision_loss, reason = "the seconds of thousands of years fit")]
fn seconds_left(certificate: Option<&CertificateCounts>) -> f64 {
    let left = certificate.and_then(|certificate| certificate.seconds_left(Timestamp::now()));
    left.map_or(f64::INFINITY, |seconds| seconds as f64)
}
