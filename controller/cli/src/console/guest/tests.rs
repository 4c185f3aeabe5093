use std::{cell::RefCell, collections::VecDeque};

use futures::{SinkExt, StreamExt};
use tokio::io::{DuplexStream, duplex};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Message,
        protocol::{CloseFrame, Role},
    },
};

use super::*;

type Server = WebSocketStream<DuplexStream>;

fn guest(screen: StreamScreen) -> OpenGuest {
    OpenGuest {
        state: Mutex::new(ViewState {
            status: StreamStatus::Connecting,
            screen,
        }),
        changes: watch::Sender::new(0),
        output: Notify::new(),
        frames: Notify::new(),
    }
}

fn terminal() -> OpenGuest {
    guest(StreamScreen::Terminal(
        Box::new(TerminalScreen::new().unwrap()),
        Vec::new(),
    ))
}

/// Returns both ends of a websocket.
async fn websocket() -> (GuestSocket, Server) {
    let (near, far) = duplex(64 << 10);
    let server = WebSocketStream::from_raw_socket(far, Role::Server, None).await;
    (GuestSocket::over(near).await, server)
}

/// Runs a guest whose attempts to connect have these outcomes. Further attempts never finish.
async fn run(guest: &OpenGuest, attempts: Vec<Result<GuestSocket, HandshakeError>>) {
    let attempts = RefCell::new(VecDeque::from(attempts));
    guest
        .run(|| {
            let next = attempts.borrow_mut().pop_front();
            async { next.unwrap_or(Err(HandshakeError::NoWebSocket)) }
        })
        .await;
}

fn refused(code: u16, message: &str) -> HandshakeError {
    HandshakeError::Status {
        code,
        message: message.into(),
    }
}

async fn close(server: &mut Server, code: u16, reason: &str) {
    let frame = CloseFrame {
        code: code.into(),
        reason: reason.into(),
    };
    server.send(Message::Close(Some(frame))).await.unwrap();
}

fn status(guest: &OpenGuest) -> StreamStatus {
    guest.state.lock().status.clone()
}

fn text(guest: &OpenGuest) -> String {
    match &guest.state.lock().screen {
        StreamScreen::Terminal(terminal, _) => terminal.rows().into_iter().map(Markup::into_string).collect(),
        StreamScreen::Display(_) => String::new(),
    }
}

fn key(name: &str) -> UserInput {
    UserInput::Key(KeyPress {
        key: name.into(),
        down: true,
        ..KeyPress::default()
    })
}

#[tokio::test(start_paused = true)]
async fn console_reconnects_after_migration_and_keeps_the_screen() {
    let guest = terminal();
    let (first, mut source) = websocket().await;
    let (second, mut target) = websocket().await;
    let attempts = vec![Ok(first), Err(refused(400, "VMI is not running")), Ok(second)];
    let moves = async {
        source.send(Message::binary(&b"before "[..])).await.unwrap();
        close(&mut source, AGAIN, "it migrated to node b").await;
        target.send(Message::binary(&b"after"[..])).await.unwrap();
        let mut changes = guest.changes.subscribe();
        changes.wait_for(|_| text(&guest).contains("after")).await.unwrap();
        assert_eq!(
            status(&guest),
            StreamStatus::Connected(Some("it migrated to node b".into()))
        );
        close(&mut target, 1001, "the guest has ended").await;
    };
    tokio::join!(run(&guest, attempts), moves);
    assert_eq!(status(&guest), StreamStatus::Ended("the guest has ended".into()));
    assert!(text(&guest).contains("before after"), "{}", text(&guest));
}

#[tokio::test(start_paused = true)]
async fn console_that_is_not_back_in_time_ends_with_the_last_error() {
    let guest = terminal();
    let (first, mut source) = websocket().await;
    let begun = Instant::now();
    let closes = close(&mut source, AGAIN, "it migrated to node b");
    tokio::join!(run(&guest, vec![Ok(first)]), closes);
    assert!(matches!(status(&guest), StreamStatus::Ended(why) if why.contains("no websocket")));
    assert!(begun.elapsed() >= RECONNECT && begun.elapsed() < RECONNECT * 2);
}

#[tokio::test(start_paused = true)]
async fn refusal_is_shown_verbatim_and_not_retried() {
    for (refusal, expected) in [
        (refused(403, "you may not"), StreamStatus::Ended("you may not".into())),
        (
            refused(400, "VMI is not running"),
            StreamStatus::Ended("VMI is not running".into()),
        ),
        (
            refused(500, "Active VNC connection. Request denied."),
            StreamStatus::InUse,
        ),
        (
            HandshakeError::TooLate,
            StreamStatus::Ended("the API server opened no websocket within 60 s".into()),
        ),
    ] {
        let guest = terminal();
        run(&guest, vec![Err(refusal)]).await;
        assert_eq!(status(&guest), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn connection_closed_without_a_reason_is_not_reopened() {
    let guest = terminal();
    let (socket, server) = websocket().await;
    drop(server);
    run(&guest, vec![Ok(socket)]).await;
    assert_eq!(status(&guest), StreamStatus::Lost);
    guest.input(vec![key("a")]);
    assert!(guest.take_output().is_empty(), "nothing is kept for another connection");
}

#[tokio::test(start_paused = true)]
async fn typed_keys_and_replies_reach_the_guest_in_order() {
    let guest = terminal();
    let (socket, mut server) = websocket().await;
    let types = async {
        let mut changes = guest.changes.subscribe();
        changes
            .wait_for(|_| matches!(status(&guest), StreamStatus::Connected(None)))
            .await
            .unwrap();
        guest.input(vec![
            key("l"),
            key("s"),
            key("Enter"),
            UserInput::Release,
            UserInput::CtrlAltDelete,
        ]);
        guest.input(vec![UserInput::Text { text: "a\nb".into() }]);
        assert_eq!(server.next().await.unwrap().unwrap(), Message::binary(&b"ls\ra\rb"[..]));
        server.send(Message::binary(&b"\x1b[6n"[..])).await.unwrap();
        assert_eq!(
            server.next().await.unwrap().unwrap(),
            Message::binary(&b"\x1b[1;1R"[..])
        );
        // The waiting output for a guest that does not read is limited.
        for _ in 0..100 {
            guest.input(vec![UserInput::Text { text: "x".repeat(1024) }]);
        }
        assert!(guest.take_output().len() <= MOST_INPUT);
        close(&mut server, 1001, "over").await;
    };
    tokio::join!(run(&guest, vec![Ok(socket)]), types);
}

#[tokio::test(start_paused = true)]
async fn display_is_requested_at_the_pace_of_the_browser() {
    let guest = guest(StreamScreen::Display(Rfb::new(Budget::default())));
    let (socket, mut server) = websocket().await;
    let shows = async {
        // A display of 2 by 1 pixels, without a name.
        let start = [&b"RFB 003.008\n\x01\x01\0\0\0\0\0\x02\0\x01"[..], &[0; 20]].concat();
        server.send(Message::binary(start)).await.unwrap();
        let mut sent = Vec::new();
        while !sent.ends_with(&[3, 0, 0, 0, 0, 0, 0, 2, 0, 1]) {
            sent.extend(server.next().await.unwrap().unwrap().into_data());
        }
        // Before the first update the display is black.
        let black = [0, 0, 0, 0, 0, 2, 0, 1, 0, 0, 0, 255, 0, 0, 0, 255];
        assert_eq!(guest.frame((2, 1), Duration::from_secs(1)).await.unwrap(), black);
        assert!(guest.frame((2, 1), Duration::from_secs(1)).await.unwrap().is_empty());
        assert_eq!(guest.frame((4, 1), Duration::from_secs(1)).await, None);
        let update = [&[0, 0, 0, 1, 0, 0, 0, 0, 0, 2, 0, 1, 0, 0, 0, 0][..], &[7; 8]].concat();
        let (taken, ()) = tokio::join!(guest.frame((2, 1), Duration::from_secs(60)), async {
            server.send(Message::binary(update)).await.unwrap();
        });
        assert_eq!(taken.unwrap()[8..], [7, 7, 7, 255, 7, 7, 7, 255]);
        let next = server.next().await.unwrap().unwrap().into_data();
        assert_eq!(next[..], [3, 1, 0, 0, 0, 0, 0, 2, 0, 1]);
        server.send(Message::binary(&b"\x09"[..])).await.unwrap();
    };
    tokio::join!(run(&guest, vec![Ok(socket)]), shows);
    assert!(matches!(status(&guest), StreamStatus::Ended(why) if why.contains("message 9")));
}
