//! Every field that `v1.Pod` has, told by the type itself: it is read from a deserializer that has one of everything
//! and notes what it was asked for.

use std::cell::RefCell;

use k8s_openapi::api::core::v1::Pod;
use serde::de::{
    DeserializeSeed, Deserializer, IntoDeserializer as _, MapAccess, SeqAccess, Visitor,
    value::{Error, StrDeserializer},
};

/// A text that is a string, a quantity and a time.
const ANY_TEXT: &str = "2000-01-01T00:00:00Z";

/// The paths of all fields in the order of the type, `spec.containers[].name`. Maps are leaves.
pub(super) fn pod_fields() -> Vec<String> {
    let leaves = RefCell::new(Vec::new());
    let outcome = <Pod as serde::Deserialize>::deserialize(Place { path: String::new(), leaves: &leaves });
    outcome.expect("a pod with one of everything can be read");
    leaves.into_inner()
}

#[derive(Clone)]
struct Place<'a> {
    path: String,
    leaves: &'a RefCell<Vec<String>>,
}

impl Place<'_> {
    fn leaf(&self) {
        self.leaves.borrow_mut().push(self.path.clone());
    }
}

impl<'de> Deserializer<'de> for Place<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.leaf();
        visitor.visit_str(ANY_TEXT)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.leaf();
        // The two that only one value fits.
        visitor.visit_str(match self.path.as_str() {
            "apiVersion" => "v1",
            "kind" => "Pod",
            _ => ANY_TEXT,
        })
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_string(visitor)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.leaf();
        visitor.visit_bool(true)
    }

    fn deserialize_i32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.leaf();
        visitor.visit_i32(1)
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.leaf();
        visitor.visit_i64(1)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_map(Fields { fields: fields.iter(), current: None, place: self })
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.leaf();
        visitor.visit_map(Fields { fields: [].iter(), current: None, place: self })
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let path = format!("{}[]", self.path);
        visitor.visit_seq(One(Some(Place { path, leaves: self.leaves })))
    }

    serde::forward_to_deserialize_any! {
        i8 i16 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit unit_struct tuple tuple_struct enum identifier
        ignored_any
    }
}

struct One<'a>(Option<Place<'a>>);

impl<'de> SeqAccess<'de> for One<'_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        self.0.take().map(|place| seed.deserialize(place)).transpose()
    }
}

struct Fields<'a> {
    fields: std::slice::Iter<'static, &'static str>,
    current: Option<&'static str>,
    place: Place<'a>,
}

impl<'de> MapAccess<'de> for Fields<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        self.current = self.fields.next().copied();
        let key = self.current.map(|key| {
            let key: StrDeserializer<'_, Error> = key.into_deserializer();
            seed.deserialize(key)
        });
        key.transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let name = self.current.unwrap_or_default();
        let path =
            if self.place.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.place.path) };
        seed.deserialize(Place { path, leaves: self.place.leaves })
    }
}
