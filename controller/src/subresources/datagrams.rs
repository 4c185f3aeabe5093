//! A UDP socket as a stream of bytes.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::UdpSocket,
};

/// A connected UDP socket. Each read returns one datagram, and each write sends one.
pub(super) struct Datagrams(pub(super) UdpSocket);

impl AsyncRead for Datagrams {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        loop {
            match ready!(self.0.poll_recv(context, buffer)) {
                // An empty datagram would be an empty message, which clients ignore. A refused datagram reports the
                // error of an earlier one.
                Ok(()) if buffer.filled().len() == before => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                result => return Poll::Ready(result),
            }
        }
    }
}

impl AsyncWrite for Datagrams {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        // The error is ignored, because datagrams may be lost.
        let _ = ready!(self.0.poll_send(context, data));
        Poll::Ready(Ok(data.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, split};

    use super::*;

    #[tokio::test]
    async fn datagrams_stay_whole_and_empty_or_refused_ones_are_lost() {
        let guest = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = guest.local_addr().unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.connect(address).await.unwrap();
        guest.connect(socket.local_addr().unwrap()).await.unwrap();
        let (mut reader, mut writer) = split(Datagrams(socket));
        let mut buffer = [0; 16];
        for data in ["one", "two"] {
            writer.write_all(data.as_bytes()).await.unwrap();
        }
        for data in ["one", "two"] {
            let length = guest.recv(&mut buffer).await.unwrap();
            assert_eq!(&buffer[..length], data.as_bytes());
        }
        for data in ["", "three", "four"] {
            guest.send(data.as_bytes()).await.unwrap();
        }
        for data in ["three", "four"] {
            let length = reader.read(&mut buffer).await.unwrap();
            assert_eq!(&buffer[..length], data.as_bytes());
        }
        let from = guest.peer_addr().unwrap();
        drop(guest);
        // The kernel reports the refusal of the first datagram later.
        writer.write_all(b"five").await.unwrap();
        writer.write_all(b"six").await.unwrap();
        let guest = UdpSocket::bind(address).await.unwrap();
        guest.send_to(b"seven", from).await.unwrap();
        let length = reader.read(&mut buffer).await.unwrap();
        assert_eq!(&buffer[..length], b"seven");
    }
}
