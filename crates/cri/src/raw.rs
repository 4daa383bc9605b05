//! Calls whose messages are written and read here, because the bindings (k8s-cri 0.11) know too little or too much.

use prost::{
    Message,
    bytes::{Buf as _, BufMut as _, Bytes},
};
use tonic::{
    Request, Response, Status,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    codegen::http::uri::PathAndQuery,
};

use crate::traced::Channel;

/// Makes a call of `RuntimeService` with an encoded request; the answer as it came.
pub(crate) async fn call(
    channel: Channel,
    path: &'static str,
    request: Vec<u8>,
    max_bytes: usize,
) -> Result<Response<Bytes>, Status> {
    let mut grpc = Grpc::new(channel).max_decoding_message_size(max_bytes);
    grpc.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
    grpc.unary(Request::new(request), PathAndQuery::from_static(path), Raw).await
}

/// Reads an answer.
pub(crate) fn decode<T: Message + Default>(bytes: Bytes) -> Result<T, Status> {
    T::decode(bytes).map_err(|error| Status::internal(error.to_string()))
}

/// Bytes in, bytes out.
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, bytes: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&bytes);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}
