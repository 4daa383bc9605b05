//! Bytes to values. Nothing here panics or takes memory that the message does not account for, whatever the bytes are.

use crate::WireError;
use crate::value::{Value, alignment};

/// The specification allows 32 arrays in 32 structs; nothing real comes near.
const MAX_DEPTH: u32 = 64;

/// Takes a message, or a part of one, apart.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    little: bool,
}

impl<'a> Reader<'a> {
    pub(crate) const fn new(bytes: &'a [u8], little: bool) -> Self {
        Self { bytes, at: 0, little }
    }

    pub(crate) const fn is_at_end(&self) -> bool {
        self.at >= self.bytes.len()
    }

    pub(crate) fn align(&mut self, to: usize) -> Result<(), WireError> {
        let skip = self.at.next_multiple_of(to) - self.at;
        self.take(skip).map(drop)
    }

    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8], WireError> {
        let end = self.at.checked_add(count).ok_or(WireError::Short)?;
        let taken = self.bytes.get(self.at..end).ok_or(WireError::Short)?;
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        self.align(N)?;
        let mut bytes: [u8; N] = self.take(N)?.try_into().map_err(|_| WireError::Short)?;
        if !self.little {
            bytes.reverse();
        }
        Ok(bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, WireError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn text(&mut self) -> Result<String, WireError> {
        let length = usize::try_from(self.u32()?).map_err(|_| WireError::Large)?;
        self.string(length)
    }

    fn signature(&mut self) -> Result<String, WireError> {
        let length = usize::from(self.take(1)?.first().copied().unwrap_or(0));
        self.string(length)
    }

    fn string(&mut self, length: usize) -> Result<String, WireError> {
        let text = std::str::from_utf8(self.take(length)?).map_err(|_| WireError::Invalid("text"))?;
        if text.contains('\0') || self.take(1)? != [0] {
            return Err(WireError::Invalid("text"));
        }
        Ok(text.to_owned())
    }

    /// All values of a signature.
    pub(crate) fn values(&mut self, signature: &str) -> Result<Vec<Value>, WireError> {
        let mut rest = signature.as_bytes();
        let mut values = Vec::new();
        while !rest.is_empty() {
            let (one, after) = split_one(rest, 0)?;
            values.push(self.value(one, 0)?);
            rest = after;
        }
        Ok(values)
    }

    /// One value of exactly this type.
    fn value(&mut self, signature: &[u8], depth: u32) -> Result<Value, WireError> {
        if depth > MAX_DEPTH {
            return Err(WireError::Deep);
        }
        let (code, inner) = signature.split_first().ok_or(WireError::Invalid("signature"))?;
        Ok(match code {
            b'y' => Value::Byte(self.take(1)?.first().copied().ok_or(WireError::Short)?),
            b'b' => match self.u32()? {
                0 => Value::Bool(false),
                1 => Value::Bool(true),
                _ => return Err(WireError::Invalid("boolean")),
            },
            b'n' => Value::I16(i16::from_le_bytes(self.array()?)),
            b'q' => Value::U16(u16::from_le_bytes(self.array()?)),
            b'i' => Value::I32(i32::from_le_bytes(self.array()?)),
            b'u' => Value::U32(self.u32()?),
            b'h' => Value::Handle(self.u32()?),
            b'x' => Value::I64(i64::from_le_bytes(self.array()?)),
            b't' => Value::U64(u64::from_le_bytes(self.array()?)),
            b'd' => Value::F64(f64::from_le_bytes(self.array()?)),
            b's' => Value::Text(self.text()?),
            b'o' => Value::Path(self.text()?),
            b'g' => Value::Signature(self.signature()?),
            b'v' => {
                let signature = self.signature()?;
                let (one, after) = split_one(signature.as_bytes(), 0)?;
                if !after.is_empty() {
                    return Err(WireError::Invalid("signature"));
                }
                Value::Variant(Box::new(self.value(one, depth + 1)?))
            }
            b'a' => self.elements(inner, depth)?,
            b'(' => {
                self.align(8)?;
                let mut rest = inner.strip_suffix(b")").ok_or(WireError::Invalid("signature"))?;
                let mut fields = Vec::new();
                while !rest.is_empty() {
                    let (one, after) = split_one(rest, 0)?;
                    fields.push(self.value(one, depth + 1)?);
                    rest = after;
                }
                Value::Struct(fields)
            }
            b'{' => {
                self.align(8)?;
                let (key, value) =
                    split_one(inner.strip_suffix(b"}").ok_or(WireError::Invalid("signature"))?, 0)?;
                Value::Entry(Box::new((self.value(key, depth + 1)?, self.value(value, depth + 1)?)))
            }
            _ => return Err(WireError::Invalid("signature")),
        })
    }

    fn elements(&mut self, element: &[u8], depth: u32) -> Result<Value, WireError> {
        let code = *element.first().ok_or(WireError::Invalid("signature"))?;
        let length = usize::try_from(self.u32()?).map_err(|_| WireError::Large)?;
        self.align(alignment(code))?;
        let end =
            self.at.checked_add(length).filter(|end| *end <= self.bytes.len()).ok_or(WireError::Short)?;
        let mut elements = Vec::new();
        while self.at < end {
            let before = self.at;
            elements.push(self.value(element, depth + 1)?);
            // An element that takes no room (an empty struct) would go on for ever.
            if self.at == before {
                return Err(WireError::Invalid("array"));
            }
        }
        if self.at != end {
            return Err(WireError::Invalid("array"));
        }
        let element = String::from_utf8(element.to_vec()).map_err(|_| WireError::Invalid("signature"))?;
        Ok(Value::Array(element, elements))
    }
}

/// Splits the first complete type off a signature.
fn split_one(signature: &[u8], depth: u32) -> Result<(&[u8], &[u8]), WireError> {
    if depth > MAX_DEPTH {
        return Err(WireError::Deep);
    }
    let invalid = WireError::Invalid("signature");
    let length = match signature.first().ok_or(invalid)? {
        b'a' => {
            let inner = signature.get(1..).ok_or(invalid)?;
            1 + split_one(inner, depth + 1)?.0.len()
        }
        open @ (b'(' | b'{') => {
            let close = if *open == b'(' { b')' } else { b'}' };
            let mut rest = signature.get(1..).ok_or(invalid)?;
            let mut fields = 0;
            loop {
                match rest.first() {
                    Some(code) if *code == close => break,
                    Some(_) => {
                        rest = split_one(rest, depth + 1)?.1;
                        fields += 1;
                    }
                    None => return Err(invalid),
                }
            }
            if fields == 0 || (*open == b'{' && fields != 2) {
                return Err(invalid);
            }
            signature.len() - rest.len() + 1
        }
        b'y' | b'b' | b'n' | b'q' | b'i' | b'u' | b'x' | b't' | b'd' | b's' | b'o' | b'g' | b'v' | b'h' => 1,
        _ => return Err(invalid),
    };
    signature.split_at_checked(length).ok_or(invalid)
}
