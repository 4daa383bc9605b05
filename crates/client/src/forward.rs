//! `mainstay port-forward`.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use mainstay_stream::{
    Limits,
    negotiate::PORT_FORWARD,
    portforward::{Forwarded, Forwarder},
};
use mainstay_types::PodExt;
use tokio::{
    io::AsyncReadExt,
    net::{TcpListener, TcpStream},
    sync::mpsc,
};

use crate::{
    args::PortForwardArgs,
    connection::{Connection, escaped},
    error::ClientError,
    output::Output,
    select::{Named, all_pods},
    terminal,
};

/// How often the other end is asked whether it is there, as kubectl does.
const PING: Duration = Duration::from_secs(5);
/// How much of a text about a failed connection is shown.
const MAX_TEXT_BYTES: u64 = 4096;
/// How many remarks may wait to be printed; further ones wait with their connection.
const REMARKS: usize = 16;

/// A port of the pod, and the local one for it (0 for any).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pair {
    local: u16,
    remote: u16,
}

/// Listens until it is ended by a signal.
pub(crate) async fn run(args: PortForwardArgs, output: &mut Output) -> Result<u8, ClientError> {
    let pairs: Vec<Pair> = args.ports.iter().map(|text| pair(text)).collect::<Result<_, _>>()?;
    let addresses = addresses(&args.address)?;
    let connection = Connection::new(&args.connect)?;
    let pods = all_pods(&connection).await?;
    let pod = Named::parse(&args.pod, args.namespace.as_deref()).find(&pods)?.admitted()?;
    let request = format!("/portForward/{}/{}", escaped(pod.namespace_ref()), escaped(pod.name_ref()));
    let mut listeners = Vec::new();
    for pair in pairs {
        listeners.extend(listen(pair, &addresses).await?);
    }
    let (io, _) = connection.upgrade(&request, &[PORT_FORWARD]).await?;
    let limits = Limits { idle: None, keepalive: Some(PING), ..Limits::for_port_forward() };
    let (forwarder, driver) = Forwarder::new(io, limits);
    let forwarder = Arc::new(forwarder);
    let (remarks, mut heard) = mpsc::channel(REMARKS);
    for (listener, remote) in listeners {
        if let Ok(address) = listener.local_addr() {
            output.text(&format!("Forwarding from {address} -> {remote}\n"))?;
        }
        let work = accept(listener, remote, Arc::clone(&forwarder), connection.clone(), remarks.clone());
        connection.spawn("listener", work);
    }
    output.flush()?;
    drop(remarks);
    let mut driver = std::pin::pin!(driver);
    let work = async {
        loop {
            // Cancel safe: the driver goes on where it was, and a remark is taken out only when it is printed.
            tokio::select! {
                ended = &mut driver => return match ended {
                    Ok(()) => Err(ClientError::ForwardingEnded),
                    Err(source) => Err(ClientError::Stream { source }),
                },
                Some(remark) = heard.recv() => match remark {
                    Remark::Handling(text) => {
                        output.text(&text)?;
                        output.flush()?;
                    }
                    Remark::Failed(text) => output.note(&text),
                },
            }
        }
    };
    match terminal::unless_killed(work).await {
        Ok(ended) => ended,
        // Being ended is how it ends, as kubectl has it.
        Err(130) => Ok(0),
        Err(code) => Ok(code),
    }
}

enum Remark {
    Handling(String),
    Failed(String),
}

async fn accept(
    listener: TcpListener,
    remote: u16,
    forwarder: Arc<Forwarder>,
    connection: Connection,
    remarks: mpsc::Sender<Remark>,
) {
    let local = listener.local_addr().map(|address| address.port()).unwrap_or_default();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                let text = format!("cannot accept a connection for {local}: {error}");
                remarks.send(Remark::Failed(text)).await.ok();
                tokio::time::sleep(Duration::from_millis(250)).await;
                continue;
            }
        };
        let (forwarder, remarks) = (Arc::clone(&forwarder), remarks.clone());
        connection.spawn("connection", async move {
            remarks.send(Remark::Handling(format!("Handling connection for {local}\n"))).await.ok();
            if let Err(text) = carry(stream, remote, &forwarder).await {
                let text = format!("an error occurred forwarding {local} -> {remote}: {text}");
                remarks.send(Remark::Failed(text)).await.ok();
            }
        });
    }
}

async fn carry(mut stream: TcpStream, remote: u16, forwarder: &Forwarder) -> Result<(), String> {
    let Forwarded { mut data, error } = forwarder.connect(remote).await.map_err(|error| error.to_string())?;
    let told = async {
        let mut text = String::new();
        error.take(MAX_TEXT_BYTES).read_to_string(&mut text).await.ok();
        text
    };
    let carried = async {
        // How it ended is of interest only if the other end says so.
        tokio::io::copy_bidirectional(&mut stream, &mut data).await.ok();
    };
    let mut told = std::pin::pin!(told);
    tokio::select! {
        text = &mut told => if text.is_empty() { Ok(()) } else { Err(text) },
        () = carried => {
            // What was wrong may be said a moment later.
            match tokio::time::timeout(Duration::from_millis(500), told).await {
                Ok(text) if !text.is_empty() => Err(text),
                _ => Ok(()),
            }
        }
    }
}

async fn listen(pair: Pair, addresses: &[IpAddr]) -> Result<Vec<(TcpListener, u16)>, ClientError> {
    let mut listeners = Vec::new();
    let mut failed = None;
    let mut local = pair.local;
    for address in addresses {
        match TcpListener::bind(SocketAddr::new(*address, local)).await {
            Ok(listener) => {
                // The same number on every address.
                local = listener.local_addr().map(|address| address.port()).unwrap_or(local);
                listeners.push((listener, pair.remote));
            }
            Err(source) => {
                failed = Some(ClientError::Listen { address: SocketAddr::new(*address, local), source })
            }
        }
    }
    // A machine may well be without one of the two loopback addresses.
    match failed {
        Some(error) if listeners.is_empty() => Err(error),
        _ => Ok(listeners),
    }
}

/// Reads `LOCAL:REMOTE`, `:REMOTE` (any local port) or `PORT`.
fn pair(text: &str) -> Result<Pair, ClientError> {
    let invalid = || ClientError::Ports { text: text.to_owned() };
    let number = |text: &str| text.parse::<u16>().map_err(|_| invalid());
    let (local, remote) = match text.split_once(':') {
        Some(("", remote)) => (0, number(remote)?),
        Some((local, remote)) => (number(local)?, number(remote)?),
        None => (number(text)?, number(text)?),
    };
    if remote == 0 {
        return Err(invalid());
    }
    Ok(Pair { local, remote })
}

fn addresses(given: &[String]) -> Result<Vec<IpAddr>, ClientError> {
    let mut addresses = Vec::new();
    for text in given {
        match text.as_str() {
            "localhost" => addresses.extend([IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()]),
            text => addresses.push(text.parse().map_err(|_| ClientError::Address { text: text.to_owned() })?),
        }
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_as_kubectl_writes_them() {
        for (text, local, remote) in [("80", 80, 80), ("8080:80", 8080, 80), (":80", 0, 80), ("0:80", 0, 80)]
        {
            assert_eq!(pair(text).unwrap(), Pair { local, remote }, "{text}");
        }
        for text in ["", ":", "0", "80:", "80:0", "a", "80:b", "65536", "1:2:3", "-1"] {
            assert!(pair(text).is_err(), "{text}");
        }
        assert_eq!(addresses(&["localhost".into(), "0.0.0.0".into()]).unwrap().len(), 3);
        assert!(addresses(&["node1".into()]).is_err());
    }
}
