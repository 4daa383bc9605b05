//! Values to bytes.

use crate::WireError;
use crate::value::{Value, alignment};

/// More than any message this client has to send.
pub(crate) const MAX_MESSAGE: usize = 16 << 20;

/// Builds a part of a message; alignment counts from its beginning. Little-endian.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    pub(crate) fn finish(self) -> Vec<u8> {
        self.bytes
    }

    pub(crate) fn pad(&mut self, to: usize) {
        self.bytes.resize(self.bytes.len().next_multiple_of(to), 0);
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(crate) fn u32(&mut self, number: u32) {
        self.pad(4);
        self.raw(&number.to_le_bytes());
    }

    fn text(&mut self, text: &str) -> Result<(), WireError> {
        if text.contains('\0') {
            return Err(WireError::Invalid("text"));
        }
        self.u32(u32::try_from(text.len()).map_err(|_| WireError::Large)?);
        self.raw(text.as_bytes());
        self.raw(&[0]);
        Ok(())
    }

    fn signature(&mut self, text: &str) -> Result<(), WireError> {
        self.raw(&[u8::try_from(text.len()).map_err(|_| WireError::Invalid("signature"))?]);
        self.raw(text.as_bytes());
        self.raw(&[0]);
        Ok(())
    }

    pub(crate) fn value(&mut self, value: &Value) -> Result<(), WireError> {
        match value {
            Value::Byte(byte) => self.raw(&[*byte]),
            Value::Bool(bool) => self.u32(u32::from(*bool)),
            Value::I16(number) => self.number(2, &number.to_le_bytes()),
            Value::U16(number) => self.number(2, &number.to_le_bytes()),
            Value::I32(number) => self.number(4, &number.to_le_bytes()),
            Value::U32(number) | Value::Handle(number) => self.u32(*number),
            Value::I64(number) => self.number(8, &number.to_le_bytes()),
            Value::U64(number) => self.number(8, &number.to_le_bytes()),
            Value::F64(number) => self.number(8, &number.to_le_bytes()),
            Value::Text(text) | Value::Path(text) => self.text(text)?,
            Value::Signature(text) => self.signature(text)?,
            Value::Struct(fields) => {
                self.pad(8);
                fields.iter().try_for_each(|field| self.value(field))?;
            }
            Value::Entry(entry) => {
                self.pad(8);
                self.value(&entry.0)?;
                self.value(&entry.1)?;
            }
            Value::Variant(inner) => {
                let mut signature = String::new();
                inner.signature(&mut signature);
                self.signature(&signature)?;
                self.value(inner)?;
            }
            Value::Array(element, elements) => self.array(element, elements)?,
        }
        if self.bytes.len() > MAX_MESSAGE { Err(WireError::Large) } else { Ok(()) }
    }

    fn array(&mut self, element: &str, elements: &[Value]) -> Result<(), WireError> {
        let code = *element.as_bytes().first().ok_or(WireError::Invalid("signature"))?;
        self.u32(0);
        let length_at = self.bytes.len() - 4;
        // The padding before the first element does not count, and is there without any element as well.
        self.pad(alignment(code));
        let begin = self.bytes.len();
        for value in elements {
            let mut signature = String::new();
            value.signature(&mut signature);
            if signature != element {
                return Err(WireError::Invalid("array element"));
            }
            self.value(value)?;
        }
        let length = u32::try_from(self.bytes.len() - begin).map_err(|_| WireError::Large)?;
        if let Some(place) = self.bytes.get_mut(length_at..length_at + 4) {
            place.copy_from_slice(&length.to_le_bytes());
        }
        Ok(())
    }

    fn number(&mut self, alignment: usize, bytes: &[u8]) {
        self.pad(alignment);
        self.raw(bytes);
    }
}
