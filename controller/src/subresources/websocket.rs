//! The websockets of clients: their handshake, and the relay between a client and a guest.
//!
//! ```text
//!  virtctl ──▶ kube-apiserver ──▶ WebSocket ◀── relay ──▶ peer: a stream of the agent, a TCP connection, a UDP socket
//! ```
//!
//! Clients expect KubeVirt's protocol (`pkg/virt-api/rest/streamer.go`, v1.9.0): binary messages, the subprotocol
//! `plain.kubevirt.io` if it is offered, no extensions. In addition, Drydock pings idle clients, because load balancers
//! close idle connections, and sends a reason with the close frame if it knows one.

use std::time::Duration;

use axum::{
    body::Body,
    http::{
        HeaderMap, HeaderValue, Response, StatusCode,
        header::{
            AsHeaderName, CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
            SEC_WEBSOCKET_VERSION, UPGRADE,
        },
    },
};
use drydock_core::subresources::{SubresourceError, guest_commands::Close};
use drydock_runtime::CancellationToken;
use futures::{SinkExt, StreamExt, stream::SplitSink, stream::SplitStream};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf, split},
    time::timeout,
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Bytes, Message,
        handshake::derive_accept_key,
        protocol::{CloseFrame, Role, WebSocketConfig, frame::coding::CloseCode},
    },
};

use super::{
    stream_end::EndedSide,
    timeouts::{StreamActivity, StreamTimeouts},
};

/// Subprotocol of KubeVirt.
const SUBPROTOCOL: &str = "plain.kubevirt.io";
/// Idle time after which a client is pinged.
const PING_AFTER: Duration = Duration::from_secs(30);
/// Number of unacknowledged pings after which a client is considered lost.
const MAX_UNACKNOWLEDGED: u32 = 3;
/// Time limit for a client to receive a message, after which it is considered lost. No ping can be sent while output
/// waits.
const SEND_TIMEOUT: Duration = PING_AFTER.saturating_mul(MAX_UNACKNOWLEDGED);
/// Size of a read from the guest and therefore of a message to the client, in bytes. A UDP datagram, which has at most
/// 65,507 bytes, must fit, because the kernel drops the rest.
const BUFFER: usize = 64 * 1024;
/// Maximum size of a message of a client, in bytes. virtctl copies up to 32 KiB at once.
const LARGEST_MESSAGE: usize = 128 * 1024;

/// A connection of any kind.
pub(super) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A client that has requested a websocket.
pub(super) struct Handshake {
    upgrade: OnUpgrade,
    accept: String,
    subprotocol: bool,
}

impl Handshake {
    /// Checks that a request is a websocket handshake (RFC 6455, 4.2.1).
    ///
    /// # Errors
    /// 400 if it is not.
    pub(super) fn of(request: &mut axum::extract::Request) -> Result<Self, SubresourceError> {
        let headers = request.headers();
        let key = headers.get(SEC_WEBSOCKET_KEY).cloned();
        let wanted = has(headers, UPGRADE, "websocket") && has(headers, SEC_WEBSOCKET_VERSION, "13");
        let (Some(key), true) = (key, wanted) else {
            return Err(SubresourceError::bad_request(
                "a websocket handshake of version 13 is required: use a client such as virtctl",
            ));
        };
        let subprotocol = has(headers, SEC_WEBSOCKET_PROTOCOL, SUBPROTOCOL);
        Ok(Self {
            upgrade: hyper::upgrade::on(request),
            accept: derive_accept_key(key.as_bytes()),
            subprotocol,
        })
    }

    /// Returns the response that switches to the websocket.
    pub(super) fn response(&self) -> Response<Body> {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        if let Ok(accept) = HeaderValue::from_str(&self.accept) {
            headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
        }
        if self.subprotocol {
            headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(SUBPROTOCOL));
        }
        response
    }

    /// Waits until the response has been sent.
    ///
    /// # Errors
    /// If the client has closed the connection.
    pub(super) async fn complete(self) -> Result<WebSocket, hyper::Error> {
        let upgraded = self.upgrade.await?;
        Ok(WebSocket::new(Box::new(TokioIo::new(upgraded))).await)
    }
}

/// Returns whether a header has a value in one of its lists.
fn has(headers: &HeaderMap, name: impl AsHeaderName, value: &str) -> bool {
    let lists = headers.get_all(name).into_iter().filter_map(|list| list.to_str().ok());
    lists
        .flat_map(|list| list.split(','))
        .any(|found| found.trim().eq_ignore_ascii_case(value))
}

/// A client's websocket.
pub(super) struct WebSocket(WebSocketStream<Box<dyn Duplex>>);

impl WebSocket {
    async fn new(stream: Box<dyn Duplex>) -> Self {
        let config = WebSocketConfig::default()
            .read_buffer_size(BUFFER)
            // Each message is written immediately.
            .write_buffer_size(0)
            .max_write_buffer_size(2 * BUFFER)
            .max_message_size(Some(LARGEST_MESSAGE))
            .max_frame_size(Some(LARGEST_MESSAGE));
        Self(WebSocketStream::from_raw_socket(stream, Role::Server, Some(config)).await)
    }

    /// Copies in both directions until one side ends, a timeout is exceeded, or `stopping` is cancelled. A slow side
    /// delays the other one. Each read from `peer` becomes a message, and each message is one write.
    pub(super) async fn relay(
        self,
        peer: Box<dyn Duplex>,
        stopping: &CancellationToken,
        timeouts: StreamTimeouts,
    ) -> (EndedSide, Closing) {
        let (mut sink, source) = self.0.split();
        let activity = StreamActivity::begin();
        let (from_guest, to_guest) = split(peer);
        let end = {
            let sink = &mut sink;
            tokio::select! {
                end = to_client(from_guest, sink, &activity) => end,
                () = to_peer(source, to_guest, &activity) => EndedSide::Client,
                end = timeouts.exceeded(&activity) => end,
                () = stopping.cancelled() => EndedSide::Stopping,
            }
        };
        (end, Closing(sink))
    }
}

/// A websocket to which only the close frame can still be sent.
pub(super) struct Closing(SplitSink<WebSocketStream<Box<dyn Duplex>>, Message>);

impl Closing {
    /// Closes the websocket with a reason.
    pub(super) async fn close(mut self, close: &Close) {
        const TIMEOUT: Duration = Duration::from_secs(5);
        let frame = CloseFrame {
            code: CloseCode::from(close.code),
            reason: close.reason.as_str().into(),
        };
        // An error is ignored, because a client that has closed the connection needs no reason.
        let _ = timeout(TIMEOUT, self.0.send(Message::Close(Some(frame)))).await;
    }
}

async fn to_client(
    mut guest: ReadHalf<Box<dyn Duplex>>,
    client: &mut SplitSink<WebSocketStream<Box<dyn Duplex>>, Message>,
    activity: &StreamActivity,
) -> EndedSide {
    let mut buffer = vec![0; BUFFER];
    let (mut unacknowledged, mut last) = (0, None);
    loop {
        let message = match timeout(PING_AFTER, guest.read(&mut buffer)).await {
            Ok(Ok(0) | Err(_)) => return EndedSide::Guest,
            Ok(Ok(length)) => {
                activity.data();
                Message::Binary(Bytes::copy_from_slice(&buffer[..length]))
            }
            Err(_) => {
                let now = activity.last_message();
                unacknowledged = if now == last { unacknowledged + 1 } else { 0 };
                last = now;
                if unacknowledged > MAX_UNACKNOWLEDGED {
                    return EndedSide::Client;
                }
                Message::Ping(Bytes::from_static(b"keep alive"))
            }
        };
        if !matches!(timeout(SEND_TIMEOUT, client.send(message)).await, Ok(Ok(()))) {
            return EndedSide::Client;
        }
    }
}

/// Forwards messages of the client. Ends when the client closes the websocket, or drops its connection like virtctl.
async fn to_peer(
    mut client: SplitStream<WebSocketStream<Box<dyn Duplex>>>,
    mut guest: WriteHalf<Box<dyn Duplex>>,
    activity: &StreamActivity,
) {
    while let Some(Ok(message)) = client.next().await {
        activity.message();
        let data = match message {
            Message::Binary(data) => data,
            Message::Text(text) => text.into(),
            Message::Close(_) => return,
            // The library responds to pings.
            Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => continue,
        };
        if data.is_empty() {
            continue;
        }
        activity.data();
        let written = async {
            guest.write_all(&data).await?;
            guest.flush().await
        };
        if written.await.is_err() {
            // The other direction returns the reason, after it has forwarded the last data of the guest.
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::extract::Request;
    use proptest::prelude::*;
    use tokio::io::{DuplexStream, duplex};

    use super::*;

    fn request(headers: &[(&str, &str)]) -> Request {
        let mut builder = Request::builder().uri("/");
        for (name, value) in headers {
            builder = builder.header(*name, *value);
        }
        builder.body(Body::empty()).unwrap()
    }

    #[test]
    fn handshake_accepts_websockets_and_the_subprotocol_if_offered() {
        let common = [
            ("connection", "Upgrade"),
            ("upgrade", "WebSocket"),
            ("sec-websocket-version", "13"),
            // Example of RFC 6455, 1.3.
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ];
        for (offered, expected) in [
            (None, None),
            (Some("plain.kubevirt.io"), Some("plain.kubevirt.io")),
            (
                Some("base64url.bearer.token, plain.kubevirt.io"),
                Some("plain.kubevirt.io"),
            ),
            (Some("other"), None),
        ] {
            let mut headers = common.to_vec();
            headers.extend(offered.map(|offered| ("sec-websocket-protocol", offered)));
            let handshake = Handshake::of(&mut request(&headers)).ok().unwrap();
            let response = handshake.response();
            let header = |name| response.headers().get(name).map(|value| value.to_str().unwrap());
            assert_eq!(response.status(), 101);
            assert_eq!(header("sec-websocket-accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
            assert_eq!(header("sec-websocket-protocol"), expected, "{offered:?}");
        }
        for missing in 1..common.len() {
            let mut headers = common.to_vec();
            headers.remove(missing);
            let failure = Handshake::of(&mut request(&headers)).err().unwrap();
            assert_eq!(failure.code, 400, "{missing}");
        }
    }

    struct Setup {
        client: WebSocketStream<DuplexStream>,
        guest: DuplexStream,
        relay: tokio::task::JoinHandle<(EndedSide, Closing)>,
    }

    async fn setup() -> Setup {
        limited(StreamTimeouts::default()).await
    }

    async fn limited(timeouts: StreamTimeouts) -> Setup {
        let (client, server) = duplex(1024);
        let (guest, peer) = duplex(1024);
        let socket = WebSocket::new(Box::new(server)).await;
        let client = WebSocketStream::from_raw_socket(client, Role::Client, None).await;
        #[expect(clippy::disallowed_methods, reason = "a test without a process")]
        let relay =
            tokio::spawn(async move { socket.relay(Box::new(peer), &CancellationToken::new(), timeouts).await });
        Setup { client, guest, relay }
    }

    #[tokio::test]
    async fn bytes_pass_in_both_directions_as_binary_messages() {
        let Setup {
            mut client,
            mut guest,
            relay,
        } = setup().await;
        guest.write_all(b"login: ").await.unwrap();
        assert_eq!(client.next().await.unwrap().unwrap(), Message::binary(&b"login: "[..]));
        client.send(Message::binary(&b"ro"[..])).await.unwrap();
        client.send(Message::text("ot")).await.unwrap();
        let mut read = [0; 4];
        guest.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"root");
        // virtctl drops its connection without a close frame.
        drop(client);
        assert_eq!(relay.await.unwrap().0, EndedSide::Client);
    }

    #[tokio::test]
    async fn last_output_of_the_guest_precedes_the_reason_of_the_close() {
        let Setup {
            mut client,
            mut guest,
            relay,
        } = setup().await;
        guest.write_all(b"bye").await.unwrap();
        drop(guest);
        let close = async {
            let (end, closing) = relay.await.unwrap();
            assert_eq!(end, EndedSide::Guest);
            let close = Close {
                code: 1012,
                reason: "moved".into(),
            };
            closing.close(&close).await;
        };
        let read = async {
            assert_eq!(client.next().await.unwrap().unwrap(), Message::binary(&b"bye"[..]));
            let Message::Close(Some(frame)) = client.next().await.unwrap().unwrap() else {
                panic!("not closed")
            };
            assert_eq!((u16::from(frame.code), frame.reason.as_str()), (1012, "moved"));
        };
        tokio::join!(close, read);
    }

    #[tokio::test(start_paused = true)]
    async fn idle_client_is_pinged_and_an_unresponsive_client_is_gone() {
        let Setup {
            mut client,
            guest,
            relay,
        } = setup().await;
        for _ in 0..10 {
            // The client responds to the ping when it reads.
            assert!(client.next().await.unwrap().unwrap().is_ping());
            client.flush().await.unwrap();
        }
        // The client does not read any more.
        assert_eq!(relay.await.unwrap().0, EndedSide::Client);
        drop((client, guest));
    }

    #[tokio::test(start_paused = true)]
    async fn client_that_takes_no_output_is_gone() {
        let Setup {
            client,
            mut guest,
            relay,
        } = setup().await;
        let flood = async { while guest.write_all(&[0; 4096]).await.is_ok() {} };
        let end = async {
            let relay = timeout(Duration::from_secs(3600), relay).await;
            relay.unwrap().unwrap().0
        };
        assert_eq!(tokio::join!(flood, end).1, EndedSide::Client);
        drop(client);
    }

    #[tokio::test(start_paused = true)]
    async fn stream_ends_at_the_idle_timeout_and_pings_are_no_data() {
        let idle = Duration::from_secs(100);
        let Setup {
            mut client,
            mut guest,
            relay,
        } = limited(StreamTimeouts {
            idle: Some(idle),
            total: None,
        })
        .await;
        let begin = tokio::time::Instant::now();
        // Data of either side restarts the idle time.
        tokio::time::sleep(Duration::from_secs(60)).await;
        guest.write_all(b"a").await.unwrap();
        tokio::time::sleep(Duration::from_secs(60)).await;
        client.send(Message::binary(&b"b"[..])).await.unwrap();
        let reading = async { while let Some(Ok(_)) = client.next().await {} };
        let end = async {
            let (end, closing) = relay.await.unwrap();
            drop(closing);
            end
        };
        let ((), end) = tokio::join!(reading, end);
        assert_eq!(end, EndedSide::Idle(idle));
        assert_eq!(begin.elapsed().as_secs(), 220);
    }

    #[tokio::test(start_paused = true)]
    async fn stream_ends_at_the_total_timeout_despite_traffic() {
        let total = Duration::from_secs(100);
        let Setup {
            client,
            mut guest,
            relay,
        } = limited(StreamTimeouts {
            idle: Some(Duration::from_secs(30)),
            total: Some(total),
        })
        .await;
        let begin = tokio::time::Instant::now();
        // The loop ends when the relay has dropped the guest's side.
        while guest.write_all(b"a").await.is_ok() {
            tokio::time::sleep(Duration::from_secs(9)).await;
        }
        assert_eq!(relay.await.unwrap().0, EndedSide::Expired(total));
        assert!(begin.elapsed() >= total);
        drop(client);
    }

    #[tokio::test]
    async fn slow_client_makes_the_guest_wait_within_a_bound() {
        let Setup {
            client,
            mut guest,
            relay,
        } = setup().await;
        let block = vec![0; 4096];
        let mut written = 0;
        // The loop ends when the relay reads nothing more.
        while timeout(Duration::from_millis(200), guest.write_all(&block))
            .await
            .is_ok()
        {
            written += block.len();
        }
        assert!(written < 256 * 1024, "{written}");
        drop(client);
        assert_eq!(relay.await.unwrap().0, EndedSide::Client);
    }

    #[tokio::test]
    async fn message_that_is_too_large_ends_the_client() {
        let Setup {
            mut client,
            guest: _guest,
            relay,
        } = setup().await;
        let large = Message::binary(vec![0; LARGEST_MESSAGE + 1]);
        let sent = async { drop(client.send(large).await) };
        // The connection ends with the relay's result.
        let end = async { relay.await.unwrap().0 };
        let (end, ()) = tokio::join!(end, sent);
        assert_eq!(end, EndedSide::Client);
    }

    /// Returns a masked frame of a client (RFC 6455, 5.2), and the data that reaches the guest, which is empty for
    /// control frames.
    fn frame() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
        let kind = prop::sample::select(vec![1_u8, 2, 9, 10]);
        (kind, prop::collection::vec(b' '..=b'~', 0..200), any::<[u8; 4]>()).prop_map(|(kind, mut data, mask)| {
            // Control frames have at most 125 bytes.
            if kind > 2 {
                data.truncate(125);
            }
            let mut frame = vec![0x80 | kind];
            match u8::try_from(data.len()) {
                Ok(length @ 0..=125) => frame.push(0x80 | length),
                _ => frame.extend([0x80 | 126, 0, u8::try_from(data.len()).unwrap()]),
            }
            frame.extend(mask);
            frame.extend(data.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
            (frame, if kind > 2 { Vec::new() } else { data })
        })
    }

    /// Sends bytes of a client to a relay in pieces of this size. Returns the data that the guest has received when the
    /// client has closed the connection.
    fn received(bytes: &[u8], piece: usize) -> Vec<u8> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        runtime.block_on(async {
            let (client, server) = duplex(64 << 10);
            let (mut guest, peer) = duplex(64 << 10);
            let socket = WebSocket::new(Box::new(server)).await;
            let stopping = CancellationToken::new();
            let relay = socket.relay(Box::new(peer), &stopping, StreamTimeouts::default());
            let relay = async {
                let (end, closing) = relay.await;
                drop(closing);
                end
            };
            // The client has sent everything, but still reads: a relay that cannot respond to a ping stops reading.
            let (mut replies, mut requests) = split(client);
            let send = async {
                for piece in bytes.chunks(piece) {
                    // The relay ends if the bytes are not a frame.
                    if requests.write_all(piece).await.is_err() {
                        break;
                    }
                    tokio::task::yield_now().await;
                }
                let _ = requests.shutdown().await;
            };
            let mut ignored = Vec::new();
            let (end, (), _) = tokio::join!(relay, send, replies.read_to_end(&mut ignored));
            assert_eq!(end, EndedSide::Client);
            let mut data = Vec::new();
            guest.read_to_end(&mut data).await.unwrap();
            data
        })
    }

    proptest! {
        #[test]
        fn any_split_of_frames_gives_the_guest_the_same_bytes(
            frames in prop::collection::vec(frame(), 0..8), piece in 1_usize..64, lost in 0_usize..300
        ) {
            let bytes: Vec<u8> = frames.iter().flat_map(|(frame, _)| frame.clone()).collect();
            let expected: Vec<u8> = frames.iter().flat_map(|(_, data)| data.clone()).collect();
            prop_assert_eq!(&received(&bytes, piece), &expected);
            // If the stream is truncated, the guest receives whole messages only.
            let cut = received(&bytes[..bytes.len().saturating_sub(lost)], piece);
            prop_assert!(expected.starts_with(&cut));
            let ends = (0..=frames.len()).map(|count| frames[..count].iter().map(|(_, data)| data.len()).sum::<usize>());
            prop_assert!(ends.into_iter().any(|end| end == cut.len()), "{}", cut.len());
        }

        #[test]
        fn bytes_that_are_no_frames_end_the_relay(
            frames in prop::collection::vec(frame(), 0..4), noise in prop::collection::vec(any::<u8>(), 0..64), at in any::<prop::sample::Index>()
        ) {
            let mut bytes: Vec<u8> = frames.iter().flat_map(|(frame, _)| frame.clone()).collect();
            let at = at.index(bytes.len() + 1);
            bytes.splice(at..at, noise);
            // The guest does not receive more data than was sent.
            prop_assert!(received(&bytes, 16).len() <= bytes.len());
        }
    }
}
