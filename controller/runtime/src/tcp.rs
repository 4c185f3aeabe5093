//! TCP ports, and connections that stay open for a long time.

use std::{io, net::SocketAddr, time::Duration};

use socket2::{SockRef, TcpKeepalive};
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream, ToSocketAddrs};

/// The port cannot be opened: it is in use, or this process is not allowed to open it.
#[derive(Debug, Error)]
#[error("could not open the {name} {address}")]
pub struct PortError {
    /// The name of the port.
    name: String,
    /// The listen address.
    address: SocketAddr,
    /// The cause.
    source: io::Error,
}

/// Opens a port and returns its address. Port 0 selects a free port. Errors contain `name`, such as "admin port".
///
/// # Errors
/// If the port cannot be opened.
pub async fn listen(name: &str, address: SocketAddr) -> Result<(TcpListener, SocketAddr), PortError> {
    let open = async {
        let listener = TcpListener::bind(address).await?;
        let bound = listener.local_addr()?;
        Ok((listener, bound))
    };
    open.await.map_err(|source| PortError {
        name: name.to_owned(),
        address,
        source,
    })
}

/// Limits for detecting a dead peer that has not closed its connection, such as a peer on a node that died.
///
/// The kernel probes only connections on which no sent data waits for an acknowledgement. It closes the others after
/// about 15 minutes (`net.ipv4.tcp_retries2`), unless they have a user timeout.
#[derive(Clone, Copy, Debug)]
pub struct KeepAlive {
    /// Idle time before the first probe.
    pub idle: Duration,
    /// Interval between probes.
    pub interval: Duration,
    /// Number of probes without a response that end the connection.
    pub probes: u32,
}

impl KeepAlive {
    /// Limits for connections on behalf of users: the defaults of Go's `net.Dialer`, with which KubeVirt connects. A
    /// dead peer is detected after 150 s.
    pub const FOR_USERS: Self = Self {
        idle: Duration::from_secs(15),
        interval: Duration::from_secs(15),
        probes: 9,
    };

    /// Limits for connections to the API server. A dead peer is detected after 30 s.
    ///
    /// This is before a watch has missed enough renewals of Leases for their holders to count as unresponsive (40 s).
    pub const FOR_WATCHES: Self = Self {
        idle: Duration::from_secs(15),
        interval: Duration::from_secs(5),
        probes: 3,
    };

    /// Returns the time until a dead peer is detected.
    pub fn total(self) -> Duration {
        self.idle + self.interval * self.probes
    }

    /// Enables keep-alive probes and disables the delay of small packets, since each side waits for the data of the
    /// other.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn set_up(self, stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let keep_alive = TcpKeepalive::new()
            .with_time(self.idle)
            .with_interval(self.interval)
            .with_retries(self.probes);
        SockRef::from(stream).set_tcp_keepalive(&keep_alive)
    }

    /// Connects to an address, and sets up the connection.
    ///
    /// # Errors
    /// If no address can be reached, or the kernel refuses.
    pub async fn connect(self, address: impl ToSocketAddrs) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(address).await?;
        self.set_up(&stream)?;
        Ok(stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn connection_is_probed_and_sends_without_delay() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let stream = KeepAlive::FOR_USERS.connect(address).await.unwrap();
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap() && stream.nodelay().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(15));
        assert_eq!(socket.tcp_keepalive_interval().unwrap(), Duration::from_secs(15));
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), 9);
        assert_eq!(KeepAlive::FOR_USERS.total(), Duration::from_secs(150));
    }
}
