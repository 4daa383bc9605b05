//! The configuration files of a private containerd.

use super::Flavor;
use crate::{CgroupDriver, PAUSE};
use std::fmt::Display;
use std::path::Path;

/// Everything of the file that differs between instances.
#[derive(Debug)]
pub(crate) struct Settings<'a> {
    pub(crate) dir: &'a Path,
    pub(crate) socket: &'a Path,
    pub(crate) cni_bin_dir: &'a Path,
    /// Whether the kernel lets this process lower `oom_score_adj` (CAP_SYS_RESOURCE).
    pub(crate) may_lower_oom_score: bool,
    pub(crate) driver: CgroupDriver,
    pub(crate) runc: &'a Path,
}

impl Settings<'_> {
    /// The text of `config.toml`.
    pub(crate) fn text(&self, flavor: Flavor) -> String {
        match flavor {
            Flavor::Debian16 => self.version_2(),
            Flavor::Built24 => self.version_4(),
        }
    }

    fn common(&self) -> String {
        let dir = self.dir;
        format!(
            "root = {root}\nstate = {state}\ntemp = {temp}\n",
            root = quoted(dir.join("root").display()),
            state = quoted(dir.join("state").display()),
            temp = quoted(dir.join("tmp").display()),
        )
    }

    fn runc_options(&self) -> String {
        // runc's own state and the network namespaces live below the instance's directory as well: nothing of
        // it may meet the machine's containerd in /run.
        format!(
            "BinaryName = {runc}\nRoot = {root}\nSystemdCgroup = {systemd}\n",
            runc = quoted(self.runc.display()),
            root = quoted(self.dir.join("state/runc").display()),
            systemd = self.driver == CgroupDriver::Systemd,
        )
    }

    fn runtime_switches(&self) -> String {
        format!(
            "restrict_oom_score_adj = {restrict}\nnetns_mounts_under_state_dir = true\n\
             enable_unprivileged_ports = true\nenable_unprivileged_icmp = true\n\
             tolerate_missing_hugetlb_controller = true\n",
            restrict = !self.may_lower_oom_score,
        )
    }

    fn version_2(&self) -> String {
        let cri = "plugins.\"io.containerd.grpc.v1.cri\"";
        format!(
            "version = 2\n{common}\
             disabled_plugins = [\"io.containerd.snapshotter.v1.aufs\", \"io.containerd.snapshotter.v1.btrfs\", \
             \"io.containerd.snapshotter.v1.devmapper\", \"io.containerd.snapshotter.v1.zfs\"]\n\
             [grpc]\naddress = {socket}\n\
             [plugins.\"io.containerd.internal.v1.opt\"]\npath = {opt}\n\
             [{cri}]\nsandbox_image = {pause}\nstream_server_address = \"127.0.0.1\"\n{switches}\
             [{cri}.cni]\nbin_dir = {cni_bin}\nconf_dir = {cni_conf}\n\
             [{cri}.containerd.runtimes.runc]\nruntime_type = \"io.containerd.runc.v2\"\n\
             [{cri}.containerd.runtimes.runc.options]\n{options}\
             [{cri}.registry]\nconfig_path = {registries}\n",
            common = self.common(),
            socket = quoted(self.socket.display()),
            opt = quoted(self.dir.join("opt").display()),
            pause = quoted(PAUSE),
            switches = self.runtime_switches(),
            cni_bin = quoted(self.cni_bin_dir.display()),
            cni_conf = quoted(self.dir.join("cni").display()),
            options = self.runc_options(),
            registries = quoted(self.dir.join("registries").display()),
        )
    }

    fn version_4(&self) -> String {
        let images = "plugins.\"io.containerd.cri.v1.images\"";
        let runtime = "plugins.\"io.containerd.cri.v1.runtime\"";
        format!(
            "version = 4\n{common}imports = []\n\
             disabled_plugins = [\"io.containerd.snapshotter.v1.blockfile\", \
             \"io.containerd.snapshotter.v1.btrfs\", \"io.containerd.snapshotter.v1.devmapper\", \
             \"io.containerd.snapshotter.v1.erofs\", \"io.containerd.snapshotter.v1.zfs\"]\n\
             [plugins.\"io.containerd.server.v1.grpc\"]\naddress = {socket}\n\
             [plugins.\"io.containerd.server.v1.ttrpc\"]\naddress = {ttrpc}\n\
             [plugins.\"io.containerd.internal.v1.opt\"]\npath = {opt}\n\
             [plugins.\"io.containerd.nri.v1.nri\"]\ndisable = true\n\
             [plugins.\"io.containerd.grpc.v1.cri\"]\nstream_server_address = \"127.0.0.1\"\n\
             [{images}.pinned_images]\nsandbox = {pause}\n\
             [{images}.registry]\nconfig_path = {registries}\n\
             [{runtime}]\n{switches}cdi_spec_dirs = [{cdi}]\n\
             [{runtime}.cni]\nbin_dirs = [{cni_bin}]\nconf_dir = {cni_conf}\n\
             [{runtime}.containerd.runtimes.runc]\nruntime_type = \"io.containerd.runc.v2\"\n\
             [{runtime}.containerd.runtimes.runc.options]\n{options}",
            common = self.common(),
            socket = quoted(self.socket.display()),
            ttrpc = quoted(format_args!("{}.ttrpc", self.socket.display())),
            opt = quoted(self.dir.join("opt").display()),
            pause = quoted(PAUSE),
            registries = quoted(self.dir.join("registries").display()),
            switches = self.runtime_switches(),
            // Devices of the machine's own are nobody's here.
            cdi = quoted(self.dir.join("cdi").display()),
            cni_bin = quoted(self.cni_bin_dir.display()),
            cni_conf = quoted(self.dir.join("cni").display()),
            options = self.runc_options(),
        )
    }
}

/// A TOML basic string.
fn quoted(text: impl Display) -> String {
    format!("\"{}\"", text.to_string().replace('\\', "\\\\").replace('"', "\\\""))
}
