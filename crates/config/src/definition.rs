//! The form of one option's definition, and the macro that makes a typed struct and its table from the same lines.
//!
//! An option is written once, as a line of [`definitions!`]: JSON name, Rust name, type, default, sentence, flag, check.
//! Parsing, flags, defaults, `--explain`, the documentation page and the not-yet list all read that line.

use std::collections::BTreeMap;

use crate::duration::GoDuration;
use crate::quantity::Quantity;
use crate::secret::SecretHeaders;

/// The definition of one option.
#[derive(Debug)]
pub struct Definition {
    /// Its name in the file (`cacheTTL`), or its flag's name for an option that only a flag can set.
    pub name: &'static str,
    /// What values it takes.
    pub kind: Kind,
    /// One sentence on what it does.
    pub doc: &'static str,
    /// The value when nobody sets it, as one would write it; nothing if it is then empty or absent.
    pub default: Option<&'static str>,
    /// The flag that sets it as well.
    pub flag: Option<Flag>,
    /// Whether mainstay does what it says, or only accepts it so far.
    pub acted: bool,
    /// What values are refused.
    pub check: Check,
    /// Zero, false and empty are values of their own, not "unset" (a pointer in upstream's API type).
    pub zero_counts: bool,
    /// The feature gate that must be on for the option to be used.
    pub gate: Option<&'static str>,
    /// A file path, which in the `--config` file is relative to that file.
    pub is_path: bool,
    /// Where the default is not simply what upstream's is, or depends on something.
    pub note: Option<&'static str>,
}

/// What values an option takes.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// true or false.
    Bool,
    /// A whole number of 32 bits.
    Int32,
    /// A whole number of 64 bits.
    Int64,
    /// A whole number from zero up, of 32 bits.
    Uint32,
    /// A number.
    Float,
    /// A text.
    Text,
    /// A duration.
    Duration,
    /// A duration, or a whole number of nanoseconds for old files.
    DurationOrNanoseconds,
    /// A resource quantity, as text or number.
    Quantity,
    /// A list of texts.
    TextList,
    /// A list of whole numbers.
    Int32List,
    /// A map from text to text.
    TextMap,
    /// A map from text to true or false.
    BoolMap,
    /// A map from resource name to quantity.
    QuantityMap,
    /// HTTP headers: a map from name to a list of secret texts.
    Headers,
    /// An object with options of its own.
    Object(&'static [Section]),
    /// A list of such objects.
    ObjectList(&'static [Section]),
}

impl Kind {
    /// The type in words, for messages and the documentation.
    pub fn words(self) -> &'static str {
        match self {
            Self::Bool => "true or false",
            Self::Int32 | Self::Int64 => "a whole number",
            Self::Uint32 => "a whole number from 0 up",
            Self::Float => "a number",
            Self::Text => "a string",
            Self::Duration => "a duration (\"30s\", \"1m30s\")",
            Self::DurationOrNanoseconds => "a duration (\"5s\") or a number of nanoseconds",
            Self::Quantity => "a quantity (\"10Mi\")",
            Self::TextList => "a list of strings",
            Self::Int32List => "a list of whole numbers",
            Self::TextMap => "a map of strings to strings",
            Self::BoolMap => "a map of strings to true or false",
            Self::QuantityMap => "a map of resource names to quantities",
            Self::Headers => "a map of header names to lists of strings",
            Self::Object(_) => "an object",
            Self::ObjectList(_) => "a list of objects",
        }
    }
}

/// A group of definitions under a common heading.
#[derive(Debug)]
pub struct Section {
    /// The heading in the documentation.
    pub title: &'static str,
    /// The options of the group.
    pub definitions: &'static [Definition],
}

/// The command-line flag of an option.
#[derive(Debug, Clone, Copy)]
pub struct Flag {
    /// Its name without the dashes.
    pub name: &'static str,
    /// Its one-letter form.
    pub short: Option<char>,
    /// How its text becomes a value.
    pub style: FlagStyle,
    /// Whether upstream wants the option set in the file instead.
    pub deprecated: bool,
}

/// How the text of a flag becomes a value, where the kind alone does not say it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlagStyle {
    /// As the kind says: scalars as they are, lists comma-separated, maps as `key=value,key=value`.
    Plain,
    /// `signal<value,signal<value`.
    LessThan,
    /// One `key=value` each time the flag is given; commas belong to the value.
    OnePair,
    /// `key:value,key:value`, where a key may repeat.
    Colon,
    /// `key=value:effect,…`.
    Taints,
    /// `node:type=quantity,type=quantity;node:…`.
    ReservedMemory,
    /// `pattern=level,pattern=level`.
    VModule,
    /// Only `true` has an effect; `false` leaves the file's value alone.
    OnlyTrue,
    /// An IP address; an empty text leaves the value alone.
    Address,
    /// `key=value,key`; a key without a value gets an empty one.
    Labels,
}

/// What values of an option are refused, beyond its kind.
#[derive(Debug, Clone, Copy)]
pub enum Check {
    /// Nothing more.
    Any,
    /// Whole numbers below this.
    AtLeast(i64),
    /// Whole numbers outside these bounds.
    Between(i64, i64),
    /// Everything but a port number from 1 to 65535.
    Port,
    /// Everything but a port number, or 0 for off.
    PortOrOff,
    /// Texts other than these.
    OneOf(&'static [&'static str]),
    /// Texts that are not an IP address.
    Address,
    /// Texts that are not a quantity of at least this many units.
    QuantityAtLeast(i64),
    /// Durations shorter than this many milliseconds.
    DurationAtLeast(i64),
    /// Negative durations.
    NotNegative,
    /// A rule that involves more than the value; its words are here, its code in `validate`.
    Rule(&'static str),
}

impl Definition {
    /// A definition with only the parts that every option has.
    pub(crate) const fn new(
        name: &'static str,
        kind: Kind,
        doc: &'static str,
        default: Option<&'static str>,
        zero_counts: bool,
    ) -> Self {
        Self {
            name,
            kind,
            doc,
            default,
            flag: None,
            acted: false,
            check: Check::Any,
            zero_counts,
            gate: None,
            is_path: false,
            note: None,
        }
    }

    /// Gives it a flag that upstream has deprecated in favour of the file.
    pub(crate) const fn flag(self, name: &'static str) -> Self {
        self.flag_as(name, FlagStyle::Plain)
    }

    /// Gives it a deprecated flag with a text form of its own.
    pub(crate) const fn flag_as(mut self, name: &'static str, style: FlagStyle) -> Self {
        self.flag = Some(Flag { name, short: None, style, deprecated: true });
        self
    }

    /// Its flag is not deprecated.
    pub(crate) const fn kept(mut self) -> Self {
        if let Some(flag) = self.flag {
            self.flag = Some(Flag { deprecated: false, ..flag });
        }
        self
    }

    /// Its flag has a one-letter form.
    pub(crate) const fn short(mut self, letter: char) -> Self {
        if let Some(flag) = self.flag {
            self.flag = Some(Flag { short: Some(letter), ..flag });
        }
        self
    }

    /// mainstay does what the option says.
    pub(crate) const fn acted(mut self) -> Self {
        self.acted = true;
        self
    }

    /// Values that fail `check` are refused.
    pub(crate) const fn check(mut self, check: Check) -> Self {
        self.check = check;
        self
    }

    /// Zero is a value of its own.
    pub(crate) const fn zero_counts(mut self) -> Self {
        self.zero_counts = true;
        self
    }

    /// It needs a feature gate.
    pub(crate) const fn gate(mut self, gate: &'static str) -> Self {
        self.gate = Some(gate);
        self
    }

    /// It is a file path.
    pub(crate) const fn path(mut self) -> Self {
        self.is_path = true;
        self
    }

    /// It takes another kind of value than its Rust type says.
    pub(crate) const fn kind(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }

    /// A remark on its default.
    pub(crate) const fn note(mut self, note: &'static str) -> Self {
        self.note = Some(note);
        self
    }

    /// The name as upstream's messages give it: `maxPods (--max-pods)`.
    pub(crate) fn name_and_flag(&self, path: &str) -> String {
        match &self.flag {
            Some(flag) if !path.starts_with('-') => format!("{path} (--{})", flag.name),
            _ => path.to_owned(),
        }
    }
}

/// A Rust type that an option may have.
pub(crate) trait Shape: Sized {
    /// The kind of values it holds.
    const KIND: Kind;

    /// Whether absence is a value of its own, so that zero is one as well.
    const IS_OPTIONAL: bool = false;

    /// The value that a definition's default text stands for; the empty value if there is none.
    fn from_default(text: Option<&str>) -> Self;

    /// Whether upstream leaves the field out of JSON when it has this value and is not a pointer.
    fn is_empty(&self) -> bool;

    /// Whether the field is written to JSON.
    fn is_shown(&self, zero_counts: bool) -> bool {
        zero_counts || !self.is_empty()
    }
}

macro_rules! scalar_shapes {
    ($($ty:ty => $kind:ident, $empty:expr;)+) => {
        $(impl Shape for $ty {
            const KIND: Kind = Kind::$kind;
            fn from_default(text: Option<&str>) -> Self {
                // A test holds every default against its type, so nothing is lost here in silence.
                text.and_then(|text| text.parse().ok()).unwrap_or_default()
            }
            fn is_empty(&self) -> bool {
                let empty: fn(&Self) -> bool = $empty;
                empty(self)
            }
        })+
    };
}

scalar_shapes! {
    bool => Bool, |value| !*value;
    i32 => Int32, |value| *value == 0;
    i64 => Int64, |value| *value == 0;
    u32 => Uint32, |value| *value == 0;
    f64 => Float, |value| *value == 0.0;
    String => Text, |value| value.is_empty();
    // Structs in upstream's API type, which are never left out.
    GoDuration => Duration, |_| false;
    Quantity => Quantity, |_| false;
}

macro_rules! collection_shapes {
    ($($ty:ty => $kind:ident;)+) => {
        $(impl Shape for $ty {
            const KIND: Kind = Kind::$kind;
            fn from_default(text: Option<&str>) -> Self {
                text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
            }
            fn is_empty(&self) -> bool {
                self.is_empty()
            }
        })+
    };
}

collection_shapes! {
    Vec<String> => TextList;
    Vec<i32> => Int32List;
    BTreeMap<String, String> => TextMap;
    BTreeMap<String, bool> => BoolMap;
    BTreeMap<String, Quantity> => QuantityMap;
    SecretHeaders => Headers;
}

impl<T: Shape> Shape for Option<T> {
    const KIND: Kind = T::KIND;
    const IS_OPTIONAL: bool = true;
    fn from_default(text: Option<&str>) -> Self {
        text.map(|text| T::from_default(Some(text)))
    }
    fn is_empty(&self) -> bool {
        self.is_none()
    }
    fn is_shown(&self, _: bool) -> bool {
        self.is_some()
    }
}

/// Makes a struct and the table of its options from one list.
///
/// Each option is a doc sentence and a line `"jsonName" rust_name: Type = "default", method().method();`, where the
/// methods are those of [`Definition`].
macro_rules! definitions {
    (@default) => { None };
    (@default $default:literal) => { Some($default) };
    (
        $(#[doc = $struct_doc:literal])+
        pub struct $name:ident {
            $(section $title:literal {
                $(
                    $(#[doc = $doc:literal])+
                    $json:literal $field:ident : $ty:ty $(= $default:literal)?
                        $(, $($method:ident ( $($argument:tt)* )).+)? ;
                )*
            })+
        }
    ) => {
        $(#[doc = $struct_doc])+
        #[derive(Debug, Clone, PartialEq, serde::Deserialize)]
        #[serde(default)]
        pub struct $name {
            $($(
                $(#[doc = $doc])+
                #[serde(rename = $json)]
                pub $field: $ty,
            )*)+
        }

        impl $name {
            /// The definitions of its options, in order.
            pub const SECTIONS: &'static [$crate::definition::Section] = &[
                $($crate::definition::Section {
                    title: $title,
                    definitions: &[
                        $($crate::definition::Definition::new(
                            $json,
                            <$ty as $crate::definition::Shape>::KIND,
                            concat!($($doc),+),
                            definitions!(@default $($default)?),
                            <$ty as $crate::definition::Shape>::IS_OPTIONAL,
                        )$($(.$method($($argument)*))+)?,)*
                    ],
                }),+
            ];
        }

        impl Default for $name {
            fn default() -> Self {
                Self {
                    $($($field: $crate::definition::Shape::from_default(definitions!(@default $($default)?)),)*)+
                }
            }
        }

        impl serde::Serialize for $name {
            /// Writes the fields as upstream does: empty ones are left out unless zero is a value of its own.
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                use serde::ser::SerializeMap as _;
                let mut definitions = Self::SECTIONS.iter().flat_map(|section| section.definitions);
                let mut map = serializer.serialize_map(None)?;
                $($(
                    let zero_counts = definitions.next().is_some_and(|definition| definition.zero_counts);
                    if $crate::definition::Shape::is_shown(&self.$field, zero_counts) {
                        map.serialize_entry($json, &self.$field)?;
                    }
                )*)+
                map.end()
            }
        }

        impl $crate::definition::Shape for $name {
            const KIND: $crate::definition::Kind = $crate::definition::Kind::Object(Self::SECTIONS);
            fn from_default(_: Option<&str>) -> Self {
                Self::default()
            }
            fn is_empty(&self) -> bool {
                false
            }
        }

        impl $crate::definition::Shape for Vec<$name> {
            const KIND: $crate::definition::Kind = $crate::definition::Kind::ObjectList($name::SECTIONS);
            fn from_default(_: Option<&str>) -> Self {
                Self::new()
            }
            fn is_empty(&self) -> bool {
                self.is_empty()
            }
        }
    };
}
pub(crate) use definitions;
