//! Profiles, and the format of them that tools read: `profile.proto` of google/pprof, gzipped.

use std::{
    collections::{BTreeMap, HashMap},
    io::{self, Write as _},
    time::{Duration, SystemTime},
};

use flate2::{Compression, write::GzEncoder};
use prost::Message;

use crate::{maps, symbols};

/// A kind of value, and what it is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    kind: &'static str,
    unit: &'static str,
}

impl Unit {
    /// `inuse_space` in `bytes`, say.
    #[must_use]
    pub const fn new(kind: &'static str, unit: &'static str) -> Self {
        Self { kind, unit }
    }
}

/// So much was seen here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Addresses in this process, the innermost first.
    pub stack: Vec<usize>,
    /// Where there is no stack: what it is.
    pub name: Option<String>,
    /// A value for each of the profile's kinds.
    pub values: Vec<i64>,
}

impl Sample {
    /// Seen on this stack.
    #[must_use]
    pub fn of_stack(stack: Vec<usize>, values: Vec<i64>) -> Self {
        Self { stack, name: None, values }
    }

    /// Seen under this name.
    #[must_use]
    pub fn named(name: &str, values: Vec<i64>) -> Self {
        Self { stack: Vec::new(), name: Some(name.to_owned()), values }
    }
}

/// What was seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// What the values of samples are.
    pub kinds: Vec<Unit>,
    /// What was seen.
    pub samples: Vec<Sample>,
    /// How often there is a sample: one in so much.
    pub period: Option<(Unit, i64)>,
    /// When it was begun.
    pub begun: Option<SystemTime>,
    /// How long it took.
    pub duration: Option<Duration>,
    /// The kind that a tool shows first, if not the last.
    pub shown: Option<&'static str>,
}

/// A profile of things that are there, each under its name: how many of each.
#[must_use]
pub fn counted(kind: &'static str, names: impl IntoIterator<Item = String>) -> Profile {
    let mut counts: BTreeMap<String, i64> = BTreeMap::new();
    for name in names {
        *counts.entry(name).or_default() += 1;
    }
    Profile {
        kinds: vec![Unit::new(kind, "count")],
        samples: counts.into_iter().map(|(name, count)| Sample::named(&name, vec![count])).collect(),
        period: Some((Unit::new(kind, "count"), 1)),
        begun: Some(SystemTime::now()),
        ..Profile::default()
    }
}

impl Profile {
    /// What has come about since `before`, which is a profile of the same kinds.
    #[must_use]
    pub fn since(mut self, before: &Self) -> Self {
        let key = |sample: &Sample| (sample.stack.clone(), sample.name.clone());
        let mut earlier: HashMap<_, _> =
            before.samples.iter().map(|sample| (key(sample), sample.values.clone())).collect();
        for sample in &mut self.samples {
            let then = earlier.remove(&key(sample)).unwrap_or_default();
            for (value, then) in sample.values.iter_mut().zip(then) {
                *value -= then;
            }
        }
        // What is gone altogether.
        self.samples.extend(earlier.into_iter().map(|((stack, name), values)| Sample {
            stack,
            name,
            values: values.into_iter().map(|value| -value).collect(),
        }));
        self.samples.retain(|sample| sample.values.iter().any(|value| *value != 0));
        self.duration = self.begun.zip(before.begun).and_then(|(now, then)| now.duration_since(then).ok());
        self.begun = before.begun;
        self
    }

    /// As `go tool pprof` reads it, with the names of functions. Blocks on the disk.
    ///
    /// # Errors
    /// None that memory does not have.
    pub fn encoded(&self) -> io::Result<Vec<u8>> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&self.message().encode_to_vec())?;
        encoder.finish()
    }

    /// As people read it: the largest first, a block each. Blocks on the disk.
    #[must_use]
    pub fn text(&self) -> String {
        let kinds: Vec<String> = self.kinds.iter().map(|it| format!("{}/{}", it.kind, it.unit)).collect();
        let mut text = format!("# {}\n", kinds.join(" "));
        let addresses = self.samples.iter().flat_map(|sample| sample.stack.iter().map(|it| *it as u64));
        let names = symbols::names(&maps::executable().unwrap_or_default(), addresses);
        let mut samples: Vec<&Sample> = self.samples.iter().collect();
        samples.sort_by_key(|sample| std::cmp::Reverse(sample.values.clone()));
        for sample in samples {
            let values: Vec<String> = sample.values.iter().map(ToString::to_string).collect();
            let name = sample.name.as_deref().unwrap_or_default();
            text.push_str(&format!("{} @ {name}\n", values.join(" ")));
            for address in asked(&sample.stack, &names) {
                let name = names.get(&(*address as u64)).map_or("?", String::as_str);
                text.push_str(&format!("#\t{address:#x}\t{name}\n"));
            }
        }
        text
    }

    fn message(&self) -> proto::Profile {
        let mappings = maps::executable().unwrap_or_default();
        let addresses = self.samples.iter().flat_map(|sample| sample.stack.iter().map(|it| *it as u64));
        let names = symbols::names(&mappings, addresses);
        let mut made = Made::default();
        // The first text is the empty one.
        made.text("");
        let unit = |made: &mut Made, it: &Unit| proto::ValueType {
            r#type: made.text(it.kind),
            unit: made.text(it.unit),
        };
        let sample_type = self.kinds.iter().map(|it| unit(&mut made, it)).collect();
        let period_type = self.period.as_ref().map(|(it, _)| unit(&mut made, it));
        let mapping: Vec<proto::Mapping> = (1_u64..)
            .zip(&mappings)
            .map(|(id, it)| proto::Mapping {
                id,
                memory_start: it.start,
                memory_limit: it.end,
                file_offset: it.offset,
                filename: made.text(&it.file.to_string_lossy()),
                has_functions: true,
                ..proto::Mapping::default()
            })
            .collect();
        let mut sample = Vec::with_capacity(self.samples.len());
        for it in &self.samples {
            let mut location_id: Vec<u64> = Vec::with_capacity(it.stack.len().max(1));
            for address in asked(&it.stack, &names) {
                let address = *address as u64;
                let name = names.get(&address).cloned().unwrap_or_else(|| format!("{address:#x}"));
                let inside = mappings.iter().position(|it| (it.start..it.end).contains(&address));
                location_id.push(made.location(address, inside.map_or(0, |at| at as u64 + 1), &name));
            }
            if let Some(name) = &it.name {
                location_id.push(made.location(0, 0, name));
            }
            sample.push(proto::Sample { location_id, value: it.values.clone() });
        }
        let default_sample_type = self.shown.map_or(0, |kind| made.text(kind));
        let nanos = |it: Duration| i64::try_from(it.as_nanos()).unwrap_or(i64::MAX);
        let since = |it: SystemTime| it.duration_since(SystemTime::UNIX_EPOCH).ok();
        proto::Profile {
            sample_type,
            sample,
            mapping,
            location: made.locations,
            function: made.functions,
            string_table: made.texts,
            time_nanos: self.begun.and_then(since).map_or(0, nanos),
            duration_nanos: self.duration.map_or(0, nanos),
            period_type,
            period: self.period.map_or(0, |(_, period)| period),
            default_sample_type,
        }
    }
}

/// A stack without the frames of the allocator and of noting itself, which all stacks of the heap begin with: what counts is
/// who asked for the memory.
fn asked<'a>(stack: &'a [usize], names: &BTreeMap<u64, String>) -> &'a [usize] {
    let name = |address: &usize| names.get(&(*address as u64)).map_or("", String::as_str);
    let noting = ["mainstay_profile::stack::", "mainstay_profile::heap::note"];
    if !stack.first().is_some_and(|first| noting.iter().any(|it| name(first).starts_with(it))) {
        return stack;
    }
    let ours = |address: &usize| {
        ["mainstay_profile::", "__rust_alloc", "__rust_realloc"].iter().any(|it| name(address).contains(it))
    };
    // What is called by nobody else is no stack; it stays as it is.
    stack.iter().position(|address| !ours(address)).and_then(|at| stack.get(at..)).unwrap_or(stack)
}

/// The tables that a message refers to by number.
#[derive(Default)]
struct Made {
    texts: Vec<String>,
    text_numbers: HashMap<String, i64>,
    functions: Vec<proto::Function>,
    function_numbers: HashMap<i64, u64>,
    locations: Vec<proto::Location>,
    location_numbers: HashMap<(u64, u64), u64>,
}

impl Made {
    fn text(&mut self, text: &str) -> i64 {
        if let Some(number) = self.text_numbers.get(text) {
            return *number;
        }
        let number = i64::try_from(self.texts.len()).unwrap_or(i64::MAX);
        self.texts.push(text.to_owned());
        self.text_numbers.insert(text.to_owned(), number);
        number
    }

    fn function(&mut self, name: &str) -> u64 {
        let name = self.text(name);
        *self.function_numbers.entry(name).or_insert_with(|| {
            let id = self.functions.len() as u64 + 1;
            self.functions.push(proto::Function {
                id,
                name,
                system_name: name,
                ..proto::Function::default()
            });
            id
        })
    }

    fn location(&mut self, address: u64, mapping_id: u64, name: &str) -> u64 {
        let function_id = self.function(name);
        *self.location_numbers.entry((address, function_id)).or_insert_with(|| {
            let id = self.locations.len() as u64 + 1;
            let line = vec![proto::Line { function_id, line: 0 }];
            self.locations.push(proto::Location { id, mapping_id, address, line });
            id
        })
    }
}

/// `profile.proto`, as much of it as is used.
mod proto {
    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Profile {
        #[prost(message, repeated, tag = "1")]
        pub(super) sample_type: Vec<ValueType>,
        #[prost(message, repeated, tag = "2")]
        pub(super) sample: Vec<Sample>,
        #[prost(message, repeated, tag = "3")]
        pub(super) mapping: Vec<Mapping>,
        #[prost(message, repeated, tag = "4")]
        pub(super) location: Vec<Location>,
        #[prost(message, repeated, tag = "5")]
        pub(super) function: Vec<Function>,
        #[prost(string, repeated, tag = "6")]
        pub(super) string_table: Vec<String>,
        #[prost(int64, tag = "9")]
        pub(super) time_nanos: i64,
        #[prost(int64, tag = "10")]
        pub(super) duration_nanos: i64,
        #[prost(message, optional, tag = "11")]
        pub(super) period_type: Option<ValueType>,
        #[prost(int64, tag = "12")]
        pub(super) period: i64,
        #[prost(int64, tag = "14")]
        pub(super) default_sample_type: i64,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub(super) struct ValueType {
        #[prost(int64, tag = "1")]
        pub(super) r#type: i64,
        #[prost(int64, tag = "2")]
        pub(super) unit: i64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Sample {
        #[prost(uint64, repeated, tag = "1")]
        pub(super) location_id: Vec<u64>,
        #[prost(int64, repeated, tag = "2")]
        pub(super) value: Vec<i64>,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub(super) struct Mapping {
        #[prost(uint64, tag = "1")]
        pub(super) id: u64,
        #[prost(uint64, tag = "2")]
        pub(super) memory_start: u64,
        #[prost(uint64, tag = "3")]
        pub(super) memory_limit: u64,
        #[prost(uint64, tag = "4")]
        pub(super) file_offset: u64,
        #[prost(int64, tag = "5")]
        pub(super) filename: i64,
        #[prost(int64, tag = "6")]
        pub(super) build_id: i64,
        #[prost(bool, tag = "7")]
        pub(super) has_functions: bool,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Location {
        #[prost(uint64, tag = "1")]
        pub(super) id: u64,
        #[prost(uint64, tag = "2")]
        pub(super) mapping_id: u64,
        #[prost(uint64, tag = "3")]
        pub(super) address: u64,
        #[prost(message, repeated, tag = "4")]
        pub(super) line: Vec<Line>,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub(super) struct Line {
        #[prost(uint64, tag = "1")]
        pub(super) function_id: u64,
        #[prost(int64, tag = "2")]
        pub(super) line: i64,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub(super) struct Function {
        #[prost(uint64, tag = "1")]
        pub(super) id: u64,
        #[prost(int64, tag = "2")]
        pub(super) name: i64,
        #[prost(int64, tag = "3")]
        pub(super) system_name: i64,
        #[prost(int64, tag = "4")]
        pub(super) filename: i64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_counted_and_compared() {
        let names = |names: &[&str]| counted("goroutine", names.iter().map(|it| (*it).to_owned()));
        let before = names(&["a", "b", "b", "c"]);
        let after = names(&["a", "b", "d"]);
        assert_eq!(before.samples.iter().map(|it| it.values[0]).collect::<Vec<_>>(), [1, 2, 1]);
        let delta = after.since(&before);
        let mut seen: Vec<(String, i64)> =
            delta.samples.iter().map(|it| (it.name.clone().unwrap(), it.values[0])).collect();
        seen.sort();
        assert_eq!(seen, [("b".to_owned(), -1), ("c".to_owned(), -1), ("d".to_owned(), 1)]);
        assert!(delta.duration.is_some());
    }

    #[test]
    fn messages_refer_to_what_is_in_them() {
        let here = messages_refer_to_what_is_in_them as *const () as usize + 1;
        let kinds = vec![Unit::new("samples", "count")];
        let samples = vec![
            Sample::of_stack(vec![here, 1], vec![3]),
            Sample::of_stack(vec![here], vec![4]),
            Sample::named("lost", vec![1]),
        ];
        let profile = Profile { kinds, samples, ..Profile::default() };
        let message = profile.message();
        assert_eq!(message.string_table[0], "");
        assert_eq!(message.sample[0].location_id, [1, 2]);
        assert_eq!(message.sample[1].location_id, [1]);
        let text = |at: i64| message.string_table[usize::try_from(at).unwrap()].as_str();
        let names: Vec<&str> = message.function.iter().map(|it| text(it.name)).collect();
        assert!(names[0].ends_with("messages_refer_to_what_is_in_them"), "{names:?}");
        assert_eq!(names[1..], ["0x1", "lost"]);
        assert!(message.location[0].mapping_id > 0 && message.location[1].mapping_id == 0);
        let text = profile.text();
        assert!(text.starts_with("# samples/count\n4 @ \n#\t0x"), "{text}");
        assert!(text.contains("1 @ lost\n"), "{text}");
        assert!(profile.encoded().unwrap().starts_with(&[0x1f, 0x8b]));
    }
}
