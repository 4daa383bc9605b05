//! The values that messages carry.

/// A value of any D-Bus type.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `y`
    Byte(u8),
    /// `b`
    Bool(bool),
    /// `n`
    I16(i16),
    /// `q`
    U16(u16),
    /// `i`
    I32(i32),
    /// `u`
    U32(u32),
    /// `x`
    I64(i64),
    /// `t`
    U64(u64),
    /// `d`
    F64(f64),
    /// `s`
    Text(String),
    /// `o`
    Path(String),
    /// `g`
    Signature(String),
    /// `h`: an index into file descriptors, which this client does not take.
    Handle(u32),
    /// `a…`: the type of its elements, which an empty array needs as well, and the elements.
    Array(String, Vec<Value>),
    /// `(…)`
    Struct(Vec<Value>),
    /// `{…}`: an element of an array that is a dictionary.
    Entry(Box<(Value, Value)>),
    /// `v`
    Variant(Box<Value>),
}

impl Value {
    /// A text.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// An array of texts.
    #[must_use]
    pub fn texts<S: Into<String>>(texts: impl IntoIterator<Item = S>) -> Self {
        Self::Array("s".to_owned(), texts.into_iter().map(Self::text).collect())
    }

    /// An array of bytes.
    #[must_use]
    pub fn bytes(bytes: &[u8]) -> Self {
        Self::Array("y".to_owned(), bytes.iter().copied().map(Self::Byte).collect())
    }

    /// Names with values of any type, as systemd takes properties: `a(sv)`.
    #[must_use]
    pub fn properties(list: impl IntoIterator<Item = (&'static str, Self)>) -> Self {
        let each = |(name, value)| Self::Struct(vec![Self::text(name), Self::Variant(Box::new(value))]);
        Self::Array("(sv)".to_owned(), list.into_iter().map(each).collect())
    }

    /// The text of a text, an object path or a signature.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(text) | Self::Path(text) | Self::Signature(text) => Some(text),
            _ => None,
        }
    }

    /// The number of a `u`.
    #[must_use]
    pub const fn as_u32(&self) -> Option<u32> {
        match self {
            Self::U32(number) => Some(*number),
            _ => None,
        }
    }

    /// The number of a `t`.
    #[must_use]
    pub const fn as_u64(&self) -> Option<u64> {
        match self {
            Self::U64(number) => Some(*number),
            _ => None,
        }
    }

    /// What is in a variant; itself otherwise.
    #[must_use]
    pub fn unwrapped(&self) -> &Self {
        match self {
            Self::Variant(inner) => inner.unwrapped(),
            other => other,
        }
    }

    /// Writes its type's code.
    pub(crate) fn signature(&self, out: &mut String) {
        match self {
            Self::Byte(_) => out.push('y'),
            Self::Bool(_) => out.push('b'),
            Self::I16(_) => out.push('n'),
            Self::U16(_) => out.push('q'),
            Self::I32(_) => out.push('i'),
            Self::U32(_) => out.push('u'),
            Self::I64(_) => out.push('x'),
            Self::U64(_) => out.push('t'),
            Self::F64(_) => out.push('d'),
            Self::Text(_) => out.push('s'),
            Self::Path(_) => out.push('o'),
            Self::Signature(_) => out.push('g'),
            Self::Handle(_) => out.push('h'),
            Self::Variant(_) => out.push('v'),
            Self::Array(element, _) => {
                out.push('a');
                out.push_str(element);
            }
            Self::Struct(fields) => {
                out.push('(');
                fields.iter().for_each(|field| field.signature(out));
                out.push(')');
            }
            Self::Entry(entry) => {
                out.push('{');
                entry.0.signature(out);
                entry.1.signature(out);
                out.push('}');
            }
        }
    }
}

/// The signature of several values in a row.
pub(crate) fn signature_of(values: &[Value]) -> String {
    let mut text = String::new();
    values.iter().for_each(|value| value.signature(&mut text));
    text
}

/// The alignment of values whose type's code begins with this.
pub(crate) const fn alignment(code: u8) -> usize {
    match code {
        b'y' | b'g' | b'v' => 1,
        b'n' | b'q' => 2,
        b'x' | b't' | b'd' | b'(' | b'{' => 8,
        _ => 4,
    }
}
