//! Cgroups as systemd's slices.
//!
//! What is asked of systemd is what upstream and runc ask (`opencontainers/cgroups`, package `systemd`): a transient slice
//! that wants the slice above it, without default dependencies, with all accounting on.

use std::path::Path;
use std::time::{Duration, Instant};

use mainstay_dbus::{Call, Connection, DbusError, Value};
use mainstay_podspec::runtime::{CgroupValues, Limit, shares_to_weight};

use crate::{CgroupError, CgroupPath};

/// systemd answers in milliseconds; a machine that boots, or swaps, may take a while.
const DEADLINE: Duration = Duration::from_secs(30);
/// Where root can speak to systemd without a bus.
const PRIVATE_SOCKET: &str = "/run/systemd/private";
const ROOT_SLICE: &str = "-.slice";

const DESTINATION: &str = "org.freedesktop.systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
const PATH: &str = "/org/freedesktop/systemd1";
const UNIT_EXISTS: &str = "org.freedesktop.systemd1.UnitExists";
const NO_SUCH_UNIT: &str = "org.freedesktop.systemd1.NoSuchUnit";
const JOB_REMOVED: &str = "type='signal',sender='org.freedesktop.systemd1',path='/org/freedesktop/systemd1',\
                           interface='org.freedesktop.systemd1.Manager',member='JobRemoved'";

type Properties = Vec<(&'static str, Value)>;

/// systemd, as the one who makes slices. Each piece of work is a connection of its own.
#[derive(Debug)]
pub struct Systemd {
    cgroup_v2: bool,
}

impl Systemd {
    /// The machine's systemd. Nothing is asked of it yet.
    #[must_use]
    pub const fn new(cgroup_v2: bool) -> Self {
        Self { cgroup_v2 }
    }

    /// systemd's version, which shows that it can be spoken to.
    ///
    /// # Errors
    /// [`CgroupError::Systemd`] if it cannot.
    pub fn version(&self) -> Result<String, CgroupError> {
        let failed = |source| CgroupError::Systemd { action: "tell", unit: "its version".to_owned(), source };
        let deadline = Instant::now() + DEADLINE;
        let mut connection = connect(deadline).map_err(failed)?;
        let call = Call {
            destination: DESTINATION,
            path: PATH,
            interface: "org.freedesktop.DBus.Properties",
            member: "Get",
        };
        let answer = connection
            .call(&call, &[Value::text(MANAGER), Value::text("Version")], deadline)
            .map_err(failed)?;
        let version = answer.first().and_then(|value| value.unwrapped().as_str()).map(str::to_owned);
        version.ok_or_else(|| failed(DbusError::Form { member: "Get".to_owned() }))
    }

    /// Starts the slice with these values, or sets them on one that is there. Those above it are started with it.
    pub(crate) fn start_slice(&self, path: &CgroupPath, values: &CgroupValues) -> Result<(), CgroupError> {
        let unit = unit_of(path);
        let failed = |source| CgroupError::Systemd { action: "start", unit: unit.to_owned(), source };
        let deadline = Instant::now() + DEADLINE;
        let mut connection = connect(deadline).map_err(failed)?;
        watch_jobs(&mut connection, deadline).map_err(failed)?;
        let (mut properties, refinements) = properties(values, self.cgroup_v2);
        properties.extend(new_slice(parent_of(path), self.cgroup_v2));
        let arguments = [
            Value::text(unit),
            Value::text("replace"),
            Value::properties(properties.clone()),
            Value::Array("(sa(sv))".to_owned(), Vec::new()),
        ];
        match call(&mut connection, "StartTransientUnit", &arguments, deadline) {
            Ok(answer) => {
                let result = wait_for_job(&mut connection, &answer, deadline).map_err(failed)?;
                if result != "done" {
                    // A failed slice would be in the way of the next try.
                    reset_failed(&mut connection, unit, deadline);
                    return Err(CgroupError::Job { action: "start", unit: unit.to_owned(), result });
                }
                refine(&mut connection, unit, refinements, deadline);
                Ok(())
            }
            Err(error) if error.is(UNIT_EXISTS) => self.set_on(&mut connection, unit, values, deadline),
            Err(error) => Err(failed(error)),
        }
    }

    /// Sets the values on a slice that is there.
    pub(crate) fn set(&self, path: &CgroupPath, values: &CgroupValues) -> Result<(), CgroupError> {
        let unit = unit_of(path);
        let deadline = Instant::now() + DEADLINE;
        let mut connection = connect(deadline).map_err(|source| CgroupError::Systemd {
            action: "set",
            unit: unit.to_owned(),
            source,
        })?;
        self.set_on(&mut connection, unit, values, deadline)
    }

    /// Stops the slice and everything in it.
    pub(crate) fn stop(&self, path: &CgroupPath) -> Result<(), CgroupError> {
        let unit = unit_of(path);
        let failed = |source| CgroupError::Systemd { action: "stop", unit: unit.to_owned(), source };
        let deadline = Instant::now() + DEADLINE;
        let mut connection = connect(deadline).map_err(failed)?;
        watch_jobs(&mut connection, deadline).map_err(failed)?;
        let result =
            match call(&mut connection, "StopUnit", &[Value::text(unit), Value::text("replace")], deadline) {
                Ok(answer) => wait_for_job(&mut connection, &answer, deadline).map_err(failed)?,
                Err(error) if error.is(NO_SUCH_UNIT) => return Ok(()),
                Err(error) => return Err(failed(error)),
            };
        // One that failed (its processes were killed, say) is otherwise kept in systemd's memory for ever.
        reset_failed(&mut connection, unit, deadline);
        if result == "done" {
            Ok(())
        } else {
            Err(CgroupError::Job { action: "stop", unit: unit.to_owned(), result })
        }
    }

    fn set_on(
        &self,
        connection: &mut Connection,
        unit: &str,
        values: &CgroupValues,
        deadline: Instant,
    ) -> Result<(), CgroupError> {
        let (properties, refinements) = properties(values, self.cgroup_v2);
        set_properties(connection, unit, properties, deadline).map_err(|source| CgroupError::Systemd {
            action: "set",
            unit: unit.to_owned(),
            source,
        })?;
        refine(connection, unit, refinements, deadline);
        Ok(())
    }
}

/// Over the bus, or, where none is running, on systemd's own socket.
fn connect(deadline: Instant) -> Result<Connection, DbusError> {
    Connection::system(deadline).or_else(|error| {
        if matches!(error, DbusError::Connect { .. }) && Path::new(PRIVATE_SOCKET).exists() {
            Connection::peer(Path::new(PRIVATE_SOCKET), deadline)
        } else {
            Err(error)
        }
    })
}

fn call(
    connection: &mut Connection,
    member: &str,
    arguments: &[Value],
    deadline: Instant,
) -> Result<Vec<Value>, DbusError> {
    let call = Call { destination: DESTINATION, path: PATH, interface: MANAGER, member };
    connection.call(&call, arguments, deadline)
}

/// Before the job begins: its end may be told sooner than the answer to the call.
fn watch_jobs(connection: &mut Connection, deadline: Instant) -> Result<(), DbusError> {
    connection.watch(JOB_REMOVED, deadline)?;
    call(connection, "Subscribe", &[], deadline).map(drop)
}

/// How the job ended that the call answered with: `done`, `failed` …
fn wait_for_job(
    connection: &mut Connection,
    answer: &[Value],
    deadline: Instant,
) -> Result<String, DbusError> {
    let form = || DbusError::Form { member: "JobRemoved".to_owned() };
    let job = answer.first().and_then(Value::as_str).ok_or_else(form)?;
    loop {
        let signal = connection.next_signal("systemd's job to end", deadline)?;
        if signal.interface != MANAGER || signal.member != "JobRemoved" {
            continue;
        }
        let [_, path, _, result] = signal.body.as_slice() else { return Err(form()) };
        if path.as_str() == Some(job) {
            return Ok(result.as_str().unwrap_or_default().to_owned());
        }
    }
}

fn set_properties(
    connection: &mut Connection,
    unit: &str,
    properties: Properties,
    deadline: Instant,
) -> Result<(), DbusError> {
    if properties.is_empty() {
        return Ok(());
    }
    // Only for as long as the unit runs, not in files.
    let arguments = [Value::text(unit), Value::Bool(true), Value::properties(properties)];
    call(connection, "SetUnitProperties", &arguments, deadline).map(drop)
}

/// What older systemds do not know is set by itself, so that it does not spoil the rest: the files say the same.
fn refine(connection: &mut Connection, unit: &str, properties: Properties, deadline: Instant) {
    for property in properties {
        let name = property.0;
        if let Err(error) = set_properties(connection, unit, vec![property], deadline) {
            tracing::debug!(unit, property = name, %error, "systemd does not take a property");
        }
    }
}

fn reset_failed(connection: &mut Connection, unit: &str, deadline: Instant) {
    // Most often there is nothing to reset, and then systemd says that it does not know the unit.
    if let Err(error) = call(connection, "ResetFailedUnit", &[Value::text(unit)], deadline)
        && !error.is(NO_SUCH_UNIT)
    {
        tracing::debug!(unit, %error, "systemd keeps a slice as failed");
    }
}

fn new_slice(parent: &str, cgroup_v2: bool) -> Properties {
    let io = if cgroup_v2 { "IOAccounting" } else { "BlockIOAccounting" };
    let mut properties = vec![
        ("Description", Value::text("Kubernetes pods, by mainstay")),
        ("Wants", Value::texts([parent])),
        ("DefaultDependencies", Value::Bool(false)),
    ];
    properties.extend(
        ["MemoryAccounting", "CPUAccounting", "TasksAccounting", io].map(|name| (name, Value::Bool(true))),
    );
    properties
}

/// The values as systemd's properties: those that every systemd takes, and those that came later.
fn properties(values: &CgroupValues, cgroup_v2: bool) -> (Properties, Properties) {
    let (mut known, mut later) = (Properties::new(), Properties::new());
    if let Some(shares) = values.cpu_shares {
        known.push(if cgroup_v2 {
            ("CPUWeight", number(shares_to_weight(shares)))
        } else {
            ("CPUShares", number(shares))
        });
    }
    if let Some(quota) = quota_per_second(values) {
        known.push(("CPUQuotaPerSecUSec", quota));
        if values.cpu_period > 0 {
            later.push(("CPUQuotaPeriodUSec", number(values.cpu_period)));
        }
    }
    known.extend(
        limit(values.memory).map(|limit| (if cgroup_v2 { "MemoryMax" } else { "MemoryLimit" }, limit)),
    );
    known.extend(limit(values.pids).map(|limit| ("TasksMax", limit)));
    if cgroup_v2 {
        later.extend(
            values.cpus.as_deref().and_then(cpu_mask).map(|mask| ("AllowedCPUs", Value::bytes(&mask))),
        );
        for (file, value) in &values.unified {
            let name = match file.as_str() {
                "memory.min" => "MemoryMin",
                "memory.low" => "MemoryLow",
                "memory.high" => "MemoryHigh",
                "memory.swap.max" => "MemorySwapMax",
                _ => continue,
            };
            let value = if value == "max" { Some(u64::MAX) } else { value.parse().ok() };
            known.extend(value.map(|value| (name, Value::U64(value))));
        }
    }
    (known, later)
}

/// systemd counts CPU in hundredths of a CPU: up to the next one, as runc does.
fn quota_per_second(values: &CgroupValues) -> Option<Value> {
    const STEP: i64 = 10_000;
    match values.cpu_quota {
        Limit::AsIs => None,
        Limit::Unlimited => Some(Value::U64(u64::MAX)),
        Limit::At(quota) => {
            let period = if values.cpu_period > 0 { values.cpu_period } else { 100_000 };
            let per_second = quota.saturating_mul(1_000_000) / period;
            Some(number(per_second.saturating_add(STEP - 1) / STEP * STEP))
        }
    }
}

fn limit(limit: Limit) -> Option<Value> {
    match limit {
        Limit::AsIs => None,
        Limit::Unlimited => Some(Value::U64(u64::MAX)),
        Limit::At(amount) => Some(number(amount)),
    }
}

fn number(number: i64) -> Value {
    Value::U64(u64::try_from(number).unwrap_or(0))
}

/// `0-2,8` as the bits of bytes, the lowest CPU first.
fn cpu_mask(cpus: &str) -> Option<Vec<u8>> {
    /// More than any machine has.
    const MAX_CPU: usize = 1 << 16;
    let mut mask = Vec::new();
    for part in cpus.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last >= MAX_CPU {
            return None;
        }
        for cpu in first..=last {
            if mask.len() <= cpu / 8 {
                mask.resize(cpu / 8 + 1, 0);
            }
            if let Some(byte) = mask.get_mut(cpu / 8) {
                *byte |= 1 << (cpu % 8);
            }
        }
    }
    (!mask.is_empty()).then_some(mask)
}

fn unit_of(path: &CgroupPath) -> &str {
    path.parts().last().unwrap_or(ROOT_SLICE)
}

fn parent_of(path: &CgroupPath) -> &str {
    let above = path.parts().count().checked_sub(2);
    above.and_then(|index| path.parts().nth(index)).unwrap_or(ROOT_SLICE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_as_properties() {
        let values = CgroupValues {
            cpu_shares: Some(1024),
            cpu_quota: Limit::At(15_500),
            cpu_period: 100_000,
            memory: Limit::At(1 << 20),
            pids: Limit::Unlimited,
            cpus: Some("0-1,9".to_owned()),
            unified: [
                ("memory.low".to_owned(), "7".to_owned()),
                ("memory.high".to_owned(), "max".to_owned()),
            ]
            .into(),
            ..CgroupValues::default()
        };
        let (known, later) = properties(&values, true);
        assert_eq!(
            known,
            [
                ("CPUWeight", Value::U64(39)),
                ("CPUQuotaPerSecUSec", Value::U64(160_000)),
                ("MemoryMax", Value::U64(1 << 20)),
                ("TasksMax", Value::U64(u64::MAX)),
                ("MemoryHigh", Value::U64(u64::MAX)),
                ("MemoryLow", Value::U64(7)),
            ]
        );
        assert_eq!(
            later,
            [("CPUQuotaPeriodUSec", Value::U64(100_000)), ("AllowedCPUs", Value::bytes(&[3, 2]))]
        );
        let (known, later) = properties(&values, false);
        let names: Vec<_> = known.iter().chain(&later).map(|(name, _)| *name).collect();
        assert_eq!(
            names,
            ["CPUShares", "CPUQuotaPerSecUSec", "MemoryLimit", "TasksMax", "CPUQuotaPeriodUSec"]
        );
        assert_eq!(properties(&CgroupValues::default(), true), (Vec::new(), Vec::new()));
    }

    #[test]
    fn units_and_those_above_them() {
        for (path, unit, parent) in [
            ("/kubepods.slice", "kubepods.slice", "-.slice"),
            ("/kubepods.slice/kubepods-burstable.slice", "kubepods-burstable.slice", "kubepods.slice"),
        ] {
            let path = CgroupPath::parse(path).unwrap();
            assert_eq!((unit_of(&path), parent_of(&path)), (unit, parent));
        }
    }

    #[test]
    fn masks_of_cpus() {
        assert_eq!(cpu_mask("0"), Some(vec![1]));
        assert_eq!(cpu_mask("0-7,16"), Some(vec![255, 0, 1]));
        for bad in ["", "x", "3-", "0-999999999"] {
            assert_eq!(cpu_mask(bad), None, "{bad}");
        }
    }
}
