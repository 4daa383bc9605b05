//! The gRPC health protocol, `grpc.health.v1.Health/Check`, in plain text.
//!
//! The two messages have one field each, so they are read and written here rather than generated.

use std::time::Duration;

use bytes::{Buf, BufMut};
use http::uri::PathAndQuery;
use mainstay_types::{format_go_duration, user_agent_version};
use tonic::{
    Code, Request, Status,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    transport::Endpoint,
};

use crate::{Answer, join};

const CHECK: &str = "/grpc.health.v1.Health/Check";
const SERVING: u64 = 1;

pub(crate) async fn attempt(host: &str, port: u16, service: &str, timeout: Duration) -> Answer {
    let address = join(host, port);
    let within = format_go_duration(timeout);
    let not_connected = |why: String| {
        Answer::Failure(format!("timeout: failed to connect service {address:?} within {within}: {why}"))
    };
    let agent = format!("kube-probe/{}", user_agent_version());
    let endpoint = match Endpoint::from_shared(format!("http://{address}")).and_then(|e| e.user_agent(agent))
    {
        Ok(endpoint) => endpoint,
        Err(error) => return not_connected(chain(&error)),
    };
    let connected = std::sync::atomic::AtomicBool::new(false);
    let work = async {
        let channel = match endpoint.connect().await {
            Ok(channel) => channel,
            Err(error) => return not_connected(chain(&error)),
        };
        connected.store(true, std::sync::atomic::Ordering::Relaxed);
        let mut client = Grpc::new(channel);
        if let Err(error) = client.ready().await {
            return not_connected(chain(&error));
        }
        let request = Request::new(service.to_owned());
        match client.unary(request, PathAndQuery::from_static(CHECK), HealthCodec).await {
            Ok(response) => match response.into_inner() {
                SERVING => Answer::Success,
                status => Answer::Failure(format!("service unhealthy (responded with {:?})", name(status))),
            },
            Err(status) => failure(&status, &within),
        }
    };
    match tokio::time::timeout(timeout, work).await {
        Ok(answer) => answer,
        Err(_) if connected.load(std::sync::atomic::Ordering::Relaxed) => {
            Answer::Failure(format!("timeout: health rpc did not complete within {within}"))
        }
        Err(_) => not_connected("context deadline exceeded".into()),
    }
}

fn failure(status: &Status, within: &str) -> Answer {
    Answer::Failure(match status.code() {
        Code::Unimplemented => format!(
            "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {}",
            status.message()
        ),
        Code::DeadlineExceeded => format!("timeout: health rpc did not complete within {within}"),
        code => {
            format!("error: health rpc probe failed: rpc error: code = {code:?} desc = {}", status.message())
        }
    })
}

/// The innermost cause: what is around it says only that there was one.
fn chain(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

fn name(status: u64) -> String {
    match status {
        0 => "UNKNOWN".into(),
        1 => "SERVING".into(),
        2 => "NOT_SERVING".into(),
        3 => "SERVICE_UNKNOWN".into(),
        other => other.to_string(),
    }
}

/// `HealthCheckRequest { string service = 1; }` out, `HealthCheckResponse { ServingStatus status = 1; }` in.
#[derive(Clone, Copy, Debug, Default)]
struct HealthCodec;

impl Codec for HealthCodec {
    type Encode = String;
    type Decode = u64;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for HealthCodec {
    type Item = String;
    type Error = Status;

    fn encode(&mut self, service: String, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        if !service.is_empty() {
            buffer.put_u8(0x0a);
            let mut length = service.len();
            while length >= 0x80 {
                buffer.put_u8(u8::try_from(length & 0x7f).unwrap_or_default() | 0x80);
                length >>= 7;
            }
            buffer.put_u8(u8::try_from(length).unwrap_or_default());
            buffer.put_slice(service.as_bytes());
        }
        Ok(())
    }
}

impl Decoder for HealthCodec {
    type Item = u64;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<u64>, Status> {
        let bytes = buffer.copy_to_bytes(buffer.remaining());
        status_of(&bytes)
            .map(Some)
            .ok_or_else(|| Status::internal("the health service's answer is not valid"))
    }
}

/// Field 1 of the message; 0 when it is not there, as protobuf has it. `None` for what is no message.
fn status_of(mut bytes: &[u8]) -> Option<u64> {
    let mut status = 0;
    while bytes.has_remaining() {
        let key = varint(&mut bytes)?;
        match key & 7 {
            0 => {
                let value = varint(&mut bytes)?;
                if key >> 3 == 1 {
                    status = value;
                }
            }
            1 => bytes = bytes.get(8..)?,
            2 => {
                let length = usize::try_from(varint(&mut bytes)?).ok()?;
                bytes = bytes.get(length..)?;
            }
            5 => bytes = bytes.get(4..)?,
            _ => return None,
        }
    }
    Some(status)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages() {
        for (bytes, expected) in [
            (&b""[..], Some(0)),
            (b"\x08\x01", Some(1)),
            (b"\x08\x02", Some(2)),
            (b"\x12\x02hi\x08\x03", Some(3)),
            (b"\x11\0\0\0\0\0\0\0\0\x1d\0\0\0\0\x08\x01", Some(1)),
            (b"\x08", None),
            (b"\x12\xff\x01x", None),
            (b"\x0f", None),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", None),
        ] {
            assert_eq!(status_of(bytes), expected, "{bytes:?}");
        }
    }

    #[tokio::test]
    async fn nobody_there() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        // It accepts connections in the backlog but never speaks.
        let deadline = Duration::from_secs(6);
        let silent = attempt("127.0.0.1", port, "", deadline).await;
        assert_eq!(silent, Answer::Failure("timeout: health rpc did not complete within 6s".into()));
        // One on which nobody listens, and which nobody else can be given.
        let held = tokio::net::TcpSocket::new_v4().unwrap();
        held.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let port = held.local_addr().unwrap().port();
        let Answer::Failure(text) = attempt("127.0.0.1", port, "", deadline).await else {
            panic!("no failure")
        };
        let start = format!("timeout: failed to connect service \"127.0.0.1:{port}\" within 6s: ");
        assert!(text.starts_with(&start) && text.contains("refused"), "{text}");
    }
}
