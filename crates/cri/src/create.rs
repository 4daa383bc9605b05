//! CreateContainer with fields that the bindings (k8s-cri 0.11) do not have yet.
//!
//! Protocol buffers are joined by writing them one after the other: a message field that comes twice is merged, a
//! repeated one goes on. So the missing fields are written as a second, partial request behind the one that the bindings
//! can write.

use k8s_cri::v1 as cri;
use prost::Message;

/// What a container configuration can have beyond the bindings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContainerExtras {
    /// `stop_signal`, in CRI's numbering.
    pub stop_signal: Option<i32>,
    /// Mounts of parts of an image, each with its `image_sub_path`. They come behind those of the configuration.
    pub image_sub_paths: Vec<(cri::Mount, String)>,
}

impl ContainerExtras {
    /// Whether there is nothing beyond the bindings.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.stop_signal.is_none() && self.image_sub_paths.is_empty()
    }
}

/// The part of `CreateContainerRequest` that the bindings lack, with the numbers of cri-api v0.37.
#[derive(Clone, PartialEq, Message)]
struct MoreOfRequest {
    #[prost(message, optional, tag = "2")]
    config: Option<MoreOfConfig>,
}

#[derive(Clone, PartialEq, Message)]
struct MoreOfConfig {
    /// Encoded `Mount`s: on the wire a message and bytes are the same.
    #[prost(bytes = "vec", repeated, tag = "7")]
    mounts: Vec<Vec<u8>>,
    #[prost(int32, tag = "18")]
    stop_signal: i32,
}

#[derive(Clone, PartialEq, Message)]
struct MoreOfMount {
    #[prost(string, tag = "10")]
    image_sub_path: String,
}

/// Both parts of the request.
pub(crate) fn encode(request: &cri::CreateContainerRequest, extras: ContainerExtras) -> Vec<u8> {
    let mounts = extras.image_sub_paths.into_iter().map(|(mount, image_sub_path)| {
        let mut bytes = mount.encode_to_vec();
        bytes.extend(MoreOfMount { image_sub_path }.encode_to_vec());
        bytes
    });
    let config =
        MoreOfConfig { mounts: mounts.collect(), stop_signal: extras.stop_signal.unwrap_or_default() };
    let mut bytes = request.encode_to_vec();
    bytes.extend(MoreOfRequest { config: Some(config) }.encode_to_vec());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_part_is_merged_into_the_first() {
        let mount = |path: &str| cri::Mount { container_path: path.to_owned(), ..Default::default() };
        let request = cri::CreateContainerRequest {
            pod_sandbox_id: "sandbox".into(),
            config: Some(cri::ContainerConfig {
                working_dir: "/work".into(),
                mounts: vec![mount("/a")],
                ..Default::default()
            }),
            sandbox_config: None,
        };
        let extras = ContainerExtras {
            stop_signal: Some(29),
            image_sub_paths: vec![(mount("/b"), "part".to_owned())],
        };
        let bytes = encode(&request, extras);
        // What the bindings know arrives as if it had been written at once…
        let read = cri::CreateContainerRequest::decode(bytes.as_slice()).unwrap();
        let config = read.config.unwrap();
        assert_eq!((read.pod_sandbox_id.as_str(), config.working_dir.as_str()), ("sandbox", "/work"));
        assert_eq!(config.mounts, [mount("/a"), mount("/b")]);
        // … and the rest is there for those who know it.
        let more = MoreOfRequest::decode(bytes.as_slice()).unwrap().config.unwrap();
        assert_eq!(more.stop_signal, 29);
        assert_eq!(MoreOfMount::decode(more.mounts[1].as_slice()).unwrap().image_sub_path, "part");
    }
}
