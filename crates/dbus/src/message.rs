//! Messages and their headers.

use crate::WireError;
use crate::read::Reader;
use crate::value::{Value, signature_of};
use crate::write::{MAX_MESSAGE, Writer};

/// The part of the header that every message has.
pub(crate) const FIXED: usize = 16;
const VERSION: u8 = 1;

/// What a message is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// A method call.
    #[default]
    Call,
    /// A good answer.
    Return,
    /// A bad answer.
    Error,
    /// Something happened.
    Signal,
}

/// A message. Texts that it does not have are empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Message {
    /// What it is.
    pub kind: Kind,
    /// Its sender's number for it.
    pub serial: u32,
    /// The number of the call that it answers.
    pub reply_serial: Option<u32>,
    /// The object.
    pub path: String,
    /// The interface.
    pub interface: String,
    /// The method or signal.
    pub member: String,
    /// The error's name.
    pub error_name: String,
    /// To whom.
    pub destination: String,
    /// From whom.
    pub sender: String,
    /// The values.
    pub body: Vec<Value>,
}

impl Message {
    /// The message as bytes.
    ///
    /// # Errors
    /// [`WireError`] if a text or an array cannot be sent.
    pub fn encode(&self) -> Result<Vec<u8>, WireError> {
        let mut body = Writer::default();
        self.body.iter().try_for_each(|value| body.value(value))?;
        let body = body.finish();
        let field =
            |code: u8, value: Value| Value::Struct(vec![Value::Byte(code), Value::Variant(Box::new(value))]);
        let mut fields = Vec::new();
        for (code, text) in [(2, &self.interface), (3, &self.member), (4, &self.error_name)]
            .into_iter()
            .chain([(6, &self.destination), (7, &self.sender)])
        {
            if !text.is_empty() {
                fields.push(field(code, Value::Text(text.clone())));
            }
        }
        if !self.path.is_empty() {
            fields.push(field(1, Value::Path(self.path.clone())));
        }
        fields.extend(self.reply_serial.map(|serial| field(5, Value::U32(serial))));
        if !self.body.is_empty() {
            fields.push(field(8, Value::Signature(signature_of(&self.body))));
        }
        let kind = match self.kind {
            Kind::Call => 1,
            Kind::Return => 2,
            Kind::Error => 3,
            Kind::Signal => 4,
        };
        let mut writer = Writer::default();
        writer.raw(&[b'l', kind, 0, VERSION]);
        writer.u32(u32::try_from(body.len()).map_err(|_| WireError::Large)?);
        writer.u32(self.serial);
        writer.value(&Value::Array("(yv)".to_owned(), fields))?;
        writer.pad(8);
        writer.raw(&body);
        Ok(writer.finish())
    }

    /// How long the message is that begins with these [`FIXED`] bytes.
    pub(crate) fn length(fixed: &[u8; FIXED]) -> Result<usize, WireError> {
        let mut reader = Reader::new(fixed, is_little(fixed)?);
        reader.take(4)?;
        let body = reader.u32()?;
        reader.u32()?;
        let fields = reader.u32()?;
        let whole = (FIXED as u64 + u64::from(fields)).next_multiple_of(8) + u64::from(body);
        usize::try_from(whole).ok().filter(|length| *length <= MAX_MESSAGE).ok_or(WireError::Large)
    }

    /// Takes a whole message apart.
    ///
    /// # Errors
    /// [`WireError`] if it is none. Kinds and header fields that are unknown are errors and ignored, respectively.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let fixed = bytes.first_chunk::<FIXED>().ok_or(WireError::Short)?;
        if Self::length(fixed)? != bytes.len() {
            return Err(WireError::Invalid("length"));
        }
        let little = is_little(fixed)?;
        let kind = match fixed[1] {
            1 => Kind::Call,
            2 => Kind::Return,
            3 => Kind::Error,
            4 => Kind::Signal,
            _ => return Err(WireError::Invalid("type")),
        };
        if fixed[3] != VERSION {
            return Err(WireError::Invalid("version"));
        }
        let mut reader = Reader::new(bytes, little);
        reader.take(8)?;
        let mut message = Self { kind, serial: reader.u32()?, ..Self::default() };
        let mut signature = String::new();
        let fields = reader.values("a(yv)")?;
        let Some(Value::Array(_, fields)) = fields.into_iter().next() else {
            return Err(WireError::Invalid("header"));
        };
        for field in fields {
            let Value::Struct(pair) = field else { continue };
            let [Value::Byte(code), Value::Variant(value)] = pair.as_slice() else { continue };
            let place = match code {
                1 => &mut message.path,
                2 => &mut message.interface,
                3 => &mut message.member,
                4 => &mut message.error_name,
                5 => {
                    message.reply_serial = value.as_u32();
                    continue;
                }
                6 => &mut message.destination,
                7 => &mut message.sender,
                8 => &mut signature,
                _ => continue,
            };
            value.as_str().ok_or(WireError::Invalid("header"))?.clone_into(place);
        }
        reader.align(8)?;
        message.body = reader.values(&signature)?;
        if !reader.is_at_end() {
            return Err(WireError::Invalid("body"));
        }
        Ok(message)
    }
}

fn is_little(fixed: &[u8; FIXED]) -> Result<bool, WireError> {
    match fixed[0] {
        b'l' => Ok(true),
        b'B' => Ok(false),
        _ => Err(WireError::Invalid("byte order")),
    }
}

#[cfg(test)]
mod tests;
