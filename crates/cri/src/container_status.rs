//! ContainerStatus with a field that the bindings (k8s-cri 0.11) do not have yet.

use k8s_cri::v1 as cri;
use prost::{Message, bytes::Bytes};
use tonic::Status;

use crate::raw;

/// What the runtime says of one container.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContainerStatus {
    /// What the bindings know.
    pub status: cri::ContainerStatus,
    /// The signal that ends it, in CRI's numbering; `None` where the runtime does not tell.
    pub stop_signal: Option<i32>,
}

/// The part of `ContainerStatusResponse` that the bindings lack, with the numbers of cri-api v0.37.
#[derive(Clone, PartialEq, Message)]
struct MoreOfResponse {
    #[prost(message, optional, tag = "1")]
    status: Option<MoreOfStatus>,
}

#[derive(Clone, PartialEq, Message)]
struct MoreOfStatus {
    #[prost(int32, tag = "19")]
    stop_signal: i32,
}

/// Both parts of an answer.
pub(crate) fn decode(bytes: Bytes) -> Result<ContainerStatus, Status> {
    let more: MoreOfResponse = raw::decode(bytes.clone())?;
    let known: cri::ContainerStatusResponse = raw::decode(bytes)?;
    Ok(ContainerStatus {
        status: known.status.unwrap_or_default(),
        stop_signal: more.status.map(|status| status.stop_signal).filter(|signal| *signal != 0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stop_signal_is_read_beside_what_the_bindings_know() {
        let known = cri::ContainerStatusResponse {
            status: Some(cri::ContainerStatus { id: "c".into(), exit_code: 3, ..Default::default() }),
            info: [("a".to_owned(), "b".to_owned())].into(),
        };
        let mut bytes = known.encode_to_vec();
        let plain = decode(bytes.clone().into()).unwrap();
        assert_eq!((plain.status.exit_code, plain.stop_signal), (3, None));
        let more = MoreOfResponse { status: Some(MoreOfStatus { stop_signal: 29 }) };
        bytes.extend(more.encode_to_vec());
        let whole = decode(bytes.into()).unwrap();
        assert_eq!((whole.status.id.as_str(), whole.stop_signal), ("c", Some(29)));
        assert!(decode(Bytes::from_static(b"\xff")).is_err());
    }
}
