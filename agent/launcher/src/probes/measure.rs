//! A single probe: a connection to a port, and its result.
//!
//! passt accepts each connection, and closes it once the guest has refused it. A TCP probe therefore keeps the
//! connection open for a moment: the guest has not refused a connection that stays open.

use std::{
    fmt::Write as _,
    io::{self, BufRead, BufReader, Read, Write},
    net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs},
    os::fd::{AsFd, AsRawFd},
    time::Duration,
};

use drydock_api::launcher::ProbeAction;
use nix::{
    errno::Errno,
    poll::PollFlags,
    sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, connect, socket},
};

use super::{
    time_limit::{LimitedStream, TimeLimit},
    tls,
};

/// Maximum time that a guest may take to refuse a TCP connection.
const REFUSES_WITHIN: Duration = Duration::from_secs(1);
/// Maximum length of a response's status line in bytes.
const STATUS_LINE: u64 = 1024;

/// Executes a probe. `guest` is the address of the pod, on which passt accepts connections for the guest.
///
/// # Errors
/// If the probe fails, with a human-readable description of the failure.
pub(super) fn measure(action: &ProbeAction, guest: Option<IpAddr>, timeout: Duration) -> Result<(), String> {
    let time_limit = TimeLimit::new(timeout);
    match action {
        ProbeAction::Tcp { host, port } => {
            tcp(host.as_deref(), *port, guest, time_limit, timeout).map_err(|error| failure("port", *port, &error))
        }
        ProbeAction::Http {
            tls,
            host,
            port,
            path,
            headers,
        } => {
            let request = HttpRequest {
                tls: *tls,
                host: host.as_deref(),
                port: *port,
                path,
                headers,
            };
            let status = request
                .send(guest, time_limit)
                .map_err(|error| failure("HTTP at port", *port, &error))?;
            // As in Kubernetes, a redirect counts as success.
            if (200..400).contains(&status) {
                Ok(())
            } else {
                Err(format!("HTTP at port {port}: status {status}"))
            }
        }
    }
}

fn failure(what: &str, port: u16, error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::TimedOut {
        format!("{what} {port}: no response in time")
    } else {
        format!("{what} {port}: {error}")
    }
}

fn tcp(
    host: Option<&str>,
    port: u16,
    guest: Option<IpAddr>,
    mut time_limit: TimeLimit,
    timeout: Duration,
) -> io::Result<()> {
    let stream = open(address(host, port, guest)?, &mut time_limit)?;
    if host.is_some() {
        return Ok(());
    }
    let mut time_limit = TimeLimit::new(timeout.min(REFUSES_WITHIN));
    let mut connection = LimitedStream {
        stream: &stream,
        time_limit: &mut time_limit,
    };
    match connection.read(&mut [0]) {
        Ok(0) => Err(io::Error::new(
            io::ErrorKind::ConnectionRefused,
            "the connection was closed before any data was sent",
        )),
        Ok(_) => Ok(()),
        // The guest has accepted the connection and waits for data from the client.
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(()),
        Err(error) => Err(error),
    }
}

/// An HTTP request.
struct HttpRequest<'a> {
    tls: bool,
    host: Option<&'a str>,
    port: u16,
    path: &'a str,
    headers: &'a [(String, String)],
}

impl HttpRequest<'_> {
    /// Sends the request and returns the status of the response.
    fn send(&self, guest: Option<IpAddr>, mut time_limit: TimeLimit) -> io::Result<u16> {
        let address = address(self.host, self.port, guest)?;
        let text = self.text(address);
        let stream = open(address, &mut time_limit)?;
        let mut connection = LimitedStream {
            stream: &stream,
            time_limit: &mut time_limit,
        };
        if self.tls {
            let mut session = tls::session(self.host, address.ip())?;
            exchange(&mut rustls::Stream::new(&mut session, &mut connection), &text)
        } else {
            exchange(&mut connection, &text)
        }
    }

    /// Returns the text of the request.
    ///
    /// As in the kubelet, a header of the manifest replaces a default header with the same name.
    fn text(&self, address: SocketAddr) -> String {
        let has = |name: &str| self.headers.iter().any(|(own, _)| own.eq_ignore_ascii_case(name));
        let mut text = format!("GET {} HTTP/1.1\r\n", escaped(self.path));
        let host = match self.host {
            Some(host) => format!("{host}:{}", self.port),
            None => address.to_string(),
        };
        let own = [
            ("Host", host.as_str()),
            ("User-Agent", "kube-probe/drydock"),
            ("Accept", "*/*"),
        ];
        let own = own.into_iter().filter(|(name, _)| !has(name));
        let given = self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        for (name, value) in own.chain([("Connection", "close")]).chain(given) {
            let value: String = value.chars().filter(|c| !c.is_control()).collect();
            let _ = write!(text, "{name}: {value}\r\n");
        }
        text + "\r\n"
    }
}

/// Escapes a path so that it cannot end the request line.
fn escaped(path: &str) -> String {
    let mut escaped = String::with_capacity(path.len());
    for byte in path.bytes() {
        if byte.is_ascii_graphic() {
            escaped.push(char::from(byte));
        } else {
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}

fn exchange(connection: &mut (impl Read + Write), text: &str) -> io::Result<u16> {
    connection.write_all(text.as_bytes())?;
    connection.flush()?;
    let mut line = Vec::new();
    BufReader::with_capacity(256, connection)
        .take(STATUS_LINE)
        .read_until(b'\n', &mut line)?;
    let line = String::from_utf8_lossy(&line);
    let mut parts = line.split_ascii_whitespace();
    let status = match (parts.next(), parts.next()) {
        (Some(version), Some(status)) if version.starts_with("HTTP/") => status.parse().ok(),
        _ => None,
    };
    status.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the response is not HTTP"))
}

fn address(host: Option<&str>, port: u16, guest: Option<IpAddr>) -> io::Result<SocketAddr> {
    match host {
        Some(host) => {
            let mut found = (host.trim_matches(['[', ']']), port).to_socket_addrs()?;
            found
                .next()
                .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("{host} has no address")))
        }
        None => guest
            .map(|address| SocketAddr::new(address, port))
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the pod has no address")),
    }
}

/// Connects to an address. The returned stream is non-blocking.
fn open(address: SocketAddr, time_limit: &mut TimeLimit) -> io::Result<TcpStream> {
    let family = if address.is_ipv4() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    };
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket(family, SockType::Stream, flags, None)?;
    match connect(socket.as_raw_fd(), &SockaddrStorage::from(address)) {
        Ok(()) => {}
        Err(Errno::EINPROGRESS | Errno::EINTR) => time_limit.wait(socket.as_fd(), PollFlags::POLLOUT)?,
        Err(error) => return Err(error.into()),
    }
    let stream = TcpStream::from(socket);
    match stream.take_error()? {
        None => Ok(stream),
        Some(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, thread};

    use super::*;

    const HERE: Option<IpAddr> = Some(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST));
    /// Time limit for events that certainly occur.
    const LONG: Duration = Duration::from_secs(60);
    /// Time limit for events that never occur.
    const SHORT: Duration = Duration::from_millis(200);

    fn listener() -> (TcpListener, u16) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        (listener, port)
    }

    #[test]
    fn tcp_probe_succeeds_when_kept_open_or_written_to() {
        let (listener, port) = listener();
        let probe = |timeout| measure(&ProbeAction::Tcp { host: None, port }, HERE, timeout);
        // The server has neither accepted nor refused the connection yet.
        probe(SHORT).unwrap();
        drop(listener.accept().unwrap());
        let server = thread::spawn(move || {
            let (mut peer, _) = listener.accept().unwrap();
            peer.write_all(b"hello").unwrap();
            drop(peer);
            drop(listener.accept().unwrap());
        });
        probe(LONG).unwrap();
        let refused = probe(LONG).unwrap_err();
        assert!(refused.contains("was closed before any data was sent"), "{refused}");
        server.join().unwrap();
        let refused = probe(LONG).unwrap_err();
        assert!(refused.contains("refused"), "{refused}");
    }

    #[test]
    fn http_probe_succeeds_by_status_and_sends_headers() {
        for (response, expected) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", Ok(())),
            ("HTTP/1.0 204\r\n\r\n", Ok(())),
            ("HTTP/1.1 302 Found\r\nLocation: /x\r\n\r\n", Ok(())),
            ("HTTP/1.1 503 Busy\r\n\r\n", Err("status 503")),
            ("HTTP/1.1 404\r\n\r\n", Err("status 404")),
            ("SSH-2.0-OpenSSH_10\r\n", Err("the response is not HTTP")),
            ("", Err("the response is not HTTP")),
        ] {
            let (listener, port) = listener();
            let server = thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let request: Vec<String> = lines.map(Result::unwrap).take_while(|line| !line.is_empty()).collect();
                stream.write_all(response.as_bytes()).unwrap();
                request
            });
            let action = ProbeAction::Http {
                tls: false,
                host: None,
                port,
                path: "/ok?a b\r\nX: y".into(),
                headers: vec![
                    ("host".into(), "web.example".into()),
                    ("X-A".into(), "1\r\nB: 2".into()),
                ],
            };
            let result = measure(&action, HERE, LONG);
            match expected {
                Ok(()) => assert_eq!(result, Ok(()), "{response:?}"),
                Err(why) => assert!(result.unwrap_err().contains(why), "{response:?}"),
            }
            assert_eq!(
                server.join().unwrap(),
                [
                    "GET /ok?a%20b%0D%0AX:%20y HTTP/1.1",
                    "User-Agent: kube-probe/drydock",
                    "Accept: */*",
                    "Connection: close",
                    "host: web.example",
                    "X-A: 1B: 2"
                ]
            );
        }
    }

    #[test]
    fn probe_of_an_unresponsive_server_times_out() {
        // The kernel accepts the connection for the server, which never responds.
        let (_listener, port) = listener();
        for tls in [false, true] {
            let action = ProbeAction::Http {
                tls,
                host: Some("127.0.0.1".into()),
                port,
                path: "/".into(),
                headers: Vec::new(),
            };
            let failed = measure(&action, None, SHORT).unwrap_err();
            assert_eq!(failed, format!("HTTP at port {port}: no response in time"));
        }
    }

    #[test]
    fn https_takes_any_certificate() {
        let key = rcgen::generate_simple_self_signed(["elsewhere.example".to_owned()]).unwrap();
        let secret = rustls::pki_types::PrivateKeyDer::try_from(key.signing_key.serialize_der()).unwrap();
        let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            let config = rustls::ServerConfig::builder_with_provider(std::sync::Arc::clone(&provider))
                .with_protocol_versions(&[version])
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(vec![key.cert.der().clone()], secret.clone_key())
                .unwrap();
            let (listener, port) = listener();
            let server = thread::spawn(move || {
                let (stream, _) = listener.accept().unwrap();
                let session = rustls::ServerConnection::new(std::sync::Arc::new(config)).unwrap();
                let mut stream = BufReader::new(rustls::StreamOwned::new(session, stream));
                let mut line = String::new();
                stream.read_line(&mut line).unwrap();
                stream.get_mut().write_all(b"HTTP/1.1 500 No\r\n\r\n").unwrap();
                line
            });
            let action = ProbeAction::Http {
                tls: true,
                host: None,
                port,
                path: "/".into(),
                headers: Vec::new(),
            };
            let failed = measure(&action, HERE, LONG).unwrap_err();
            assert_eq!(failed, format!("HTTP at port {port}: status 500"));
            assert_eq!(server.join().unwrap(), "GET / HTTP/1.1\r\n");
        }
    }

    #[test]
    fn pod_without_address_fails_with_that_reason() {
        let failed = measure(&ProbeAction::Tcp { host: None, port: 22 }, None, SHORT).unwrap_err();
        assert_eq!(failed, "port 22: the pod has no address");
    }
}
