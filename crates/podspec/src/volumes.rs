//! A pod's volumes: where each lies on disk, how it is made, what is in it, and how containers see it.
//!
//! Everything in here is a pure function of its arguments. The mechanism that makes, mounts and removes is crate `volume`.

mod claims;
mod contents;
mod error;
mod mounts;
mod paths;
mod payload;
mod setup;
mod trust;

pub use claims::{affinity_of, extra_groups, lost_claim, plugin_behind, with_claims};
pub use contents::Contents;
pub use error::VolumeSpecError;
pub use mounts::{ImageVolume, MountSource, MountWish, RuntimeFeatures, image_volumes, mount_wishes};
pub use paths::{
    EmptyDirPlace, empty_dirs, plugin_name, pod_dir, ready_marker, subpath_dir, subpaths_dir, volume_dir,
    volume_path, volumes_dir,
};
pub(crate) use payload::path_problem;
pub use payload::{MAX_PATH_PARTS, Payload, PayloadFile, has_live_volumes, objects_differ};
pub use setup::{GroupChange, HostPathType, SetupKind, VolumeContext, VolumeSetup, set_up};
pub use trust::plain_chain;
