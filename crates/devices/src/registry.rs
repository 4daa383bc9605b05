//! Device plugins that make themselves known by a socket below `plugins_registry`.

use std::path::{Component, Path, PathBuf};

use mainstay_plugin::{Candidate, Handler, Work};
use mainstay_podspec::is_extended_resource;
use mainstay_task::TaskGroup;

use crate::{
    Devices,
    registration::{VERSION, connect},
};

/// Takes such plugins. Texts are upstream's.
#[derive(Debug)]
pub(crate) struct Registry {
    pub(crate) devices: Devices,
    pub(crate) tasks: TaskGroup,
    /// Nobody is called outside of it.
    pub(crate) root: PathBuf,
}

impl Registry {
    fn is_within(&self, endpoint: &Path) -> bool {
        let plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
        endpoint.is_absolute() && endpoint.components().all(plain) && endpoint.starts_with(&self.root)
    }
}

impl Handler for Registry {
    fn validate(&self, plugin: &Candidate) -> Result<(), String> {
        if !plugin.versions.iter().any(|version| version == VERSION) {
            let told = plugin.versions.join(" ");
            return Err(format!(
                "manager version, {VERSION}, is not among plugin supported versions [{told}]"
            ));
        }
        if !is_extended_resource(&plugin.name) {
            return Err(format!(
                "invalid name of device plugin socket: the ResourceName {:?} is invalid",
                plugin.name
            ));
        }
        if !self.is_within(&plugin.endpoint) {
            return Err(format!(
                "the Endpoint {:?} is invalid: it must be the absolute path of a socket below {}",
                plugin.endpoint.display().to_string(),
                self.root.display()
            ));
        }
        Ok(())
    }

    fn register<'a>(&'a self, plugin: &'a Candidate) -> Work<'a, Result<(), String>> {
        self.devices.inner.counters.device_registrations.of(plugin.name.as_str().into()).add();
        let (endpoint, socket) = (plugin.endpoint.display().to_string(), plugin.endpoint.clone());
        Box::pin(async move { connect(&self.devices, &self.tasks, &plugin.name, &endpoint, socket).await })
    }

    fn deregister(&self, plugin: &Candidate) {
        self.devices.dismiss(&plugin.name, &plugin.endpoint.display().to_string());
    }
}
