//! TCP connections that stay open for long.

use std::{io, time::Duration};

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpStream, ToSocketAddrs};

/// When a connection whose peer has gone without an end, such as on a node that died, is closed. The kernel probes only
/// connections on which no sent data waits for an acknowledgement; it gives up the others after about 15 minutes
/// (`net.ipv4.tcp_retries2`), unless they have a user timeout.
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
    /// For connections on behalf of users: the defaults of Go's `net.Dialer`, with which KubeVirt connects. A peer that
    /// has gone is noticed after 150 s.
    pub const FOR_USERS: Self = Self {
        idle: Duration::from_secs(15),
        interval: Duration::from_secs(15),
        probes: 9,
    };

    /// For the API server: a peer that has gone is noticed after 30 s, before a watch has missed enough renewals of Leases
    /// for their holders to count as unresponsive (40 s).
    pub const FOR_WATCHES: Self = Self {
        idle: Duration::from_secs(15),
        interval: Duration::from_secs(5),
        probes: 3,
    };

    /// Returns how long a peer that has gone remains unnoticed.
    pub fn total(self) -> Duration {
        self.idle + self.interval * self.probes
    }

    /// Has a connection probed, and has its data sent without delay: each side waits for what the other sends.
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

    /// Connects, and sets the connection up.
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
    use tokio::net::TcpListener;

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
