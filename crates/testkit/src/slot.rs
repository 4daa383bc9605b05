//! One subnet per running instance, handed out by lock files so that parallel instances never clash.

use crate::Instance;
use anyhow::{Context, Result, bail};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::Ipv4Addr;
use std::path::Path;

const DIR: &str = "/run/mainstay-testkit";
/// 10.88.0.0/13 in pieces of a /22, each with room for a thousand pods.
const BASE: u32 = u32::from_be_bytes([10, 88, 0, 0]);
const PREFIX: u32 = 22;
/// 10.200.0.0/15 in pieces of a /24.
const WIRES: u32 = u32::from_be_bytes([10, 200, 0, 0]);
const SLOTS: u32 = 1 << (PREFIX - 13);

/// A claimed subnet. The kernel lets go of the claim when the process ends, however it ends.
#[derive(Debug)]
pub(crate) struct Slot {
    index: u32,
    file: File,
}

impl Slot {
    /// Claims the first free subnet, after removing what dead claimants left behind.
    pub(crate) fn claim() -> Result<Self> {
        fs::create_dir_all(DIR).with_context(|| format!("cannot make {DIR}; the kit needs root"))?;
        let mut claimed = None;
        for index in 0..SLOTS {
            let path = Path::new(DIR).join(format!("slot-{index}"));
            let seen_before = path.exists();
            if !seen_before && claimed.is_some() {
                // Slots are used from the lowest up, so there is nothing to clean beyond the first new one.
                break;
            }
            let Some(mut slot) = Self::lock(index, &path)? else { continue };
            if let Err(error) = slot.sweep_previous_owner() {
                // Its record stays for the next one to try; this one just takes another subnet.
                eprintln!("testkit: {error:#}");
                continue;
            }
            if claimed.is_none() && !in_use(slot.network(), &routes()) {
                claimed = Some(slot);
            }
        }
        claimed.with_context(|| format!("all {SLOTS} subnets of 10.88.0.0/13 are in use"))
    }

    fn lock(index: u32, path: &Path) -> Result<Option<Self>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self { index, file })),
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(error)) => bail!("cannot lock {}: {error}", path.display()),
        }
    }

    fn sweep_previous_owner(&mut self) -> Result<()> {
        let mut record = String::new();
        self.file.read_to_string(&mut record).context("cannot read a slot")?;
        if let Some(instance) = Instance::from_record(&record) {
            instance
                .sweep()
                .with_context(|| format!("cannot clean up after {}", instance.dir().display()))?;
        }
        self.write("")
    }

    /// Notes who has the subnet, for whoever has to clean up after it.
    pub(crate) fn write(&mut self, record: &str) -> Result<()> {
        self.file
            .set_len(0)
            .and_then(|()| self.file.seek(SeekFrom::Start(0)))
            .and_then(|_| self.file.write_all(record.as_bytes()))
            .context("cannot write a slot")
    }

    fn network(&self) -> u32 {
        BASE + (self.index << (32 - PREFIX))
    }

    /// The subnet as `10.88.4.0/22`.
    pub(crate) fn subnet(&self) -> String {
        format!("{}/{PREFIX}", Ipv4Addr::from(self.network()))
    }

    /// One of IPv6, of addresses that no network gives out.
    pub(crate) fn subnet6(&self) -> String {
        format!("fd88:{:x}::/64", self.index)
    }

    /// Both ends of a wire to a machine of its own (see [`crate::OwnNetwork`]): the host's and the other. In a /24 that is as much this
    /// slot's as its subnet is.
    pub(crate) fn wire(&self) -> (Ipv4Addr, Ipv4Addr) {
        let net = WIRES + (self.index << 8);
        (Ipv4Addr::from(net + 1), Ipv4Addr::from(net + 2))
    }

    /// The host's own address in the subnet.
    pub(crate) fn gateway(&self) -> Ipv4Addr {
        Ipv4Addr::from(self.network() + 1)
    }

    /// The same as `10.88.4.1/22`.
    pub(crate) fn gateway_with_prefix(&self) -> String {
        format!("{}/{PREFIX}", self.gateway())
    }
}

fn routes() -> String {
    fs::read_to_string("/proc/net/route").unwrap_or_default()
}

/// Whether the machine already has a route (other than a default one) that overlaps our /22.
fn in_use(network: u32, table: &str) -> bool {
    table.lines().skip(1).any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| {
            // The kernel prints addresses as numbers in its own byte order.
            fields.get(at).and_then(|text| u32::from_str_radix(text, 16).ok()).map(u32::swap_bytes)
        };
        let (Some(destination), Some(mask)) = (number(1), number(7)) else { return false };
        let common = mask & !((1 << (32 - PREFIX)) - 1);
        mask != 0 && destination & common == network & common
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_routes() {
        let table = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n\
                     eth0 00000000 010200C0 0003 0 0 0 00000000 0 0 0\n\
                     cni0 0000580A 00000000 0001 0 0 0 0000FFFF 0 0 0\n";
        assert!(in_use(BASE, table), "10.88.0.0/16 covers the first slot");
        assert!(in_use(BASE + (63 << 10), table), "and the last one of 10.88");
        assert!(!in_use(BASE + (64 << 10), table), "10.89.0.0 is free");
        let host = "head\neth0 0205580A 00000000 0005 0 0 0 FFFFFFFF 0 0 0\n";
        assert!(in_use(BASE + (1 << 10), host), "10.88.5.2 lies in 10.88.4.0/22");
    }
}
