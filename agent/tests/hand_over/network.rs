//! The network between two tunnels, whose control channel can be held and cut.
//!
//! The content of a connection is encrypted. The control channel is recognised by its position: a source connects it
//! first, and again first after a cut.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::JoinSet,
};

/// The held part of the control channel. While a part is held, no new connection passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeldTraffic {
    /// No data is held.
    Nothing,
    /// Data from the source is held.
    ToTarget,
    /// Data from the target is held.
    ToSource,
}

/// A network. It ends when the value is dropped.
pub(crate) struct Network {
    /// Address at which the source reaches the target's tunnel.
    pub(crate) address: SocketAddr,
    held: watch::Sender<HeldTraffic>,
    /// Number of times that the control channel was cut.
    cuts: watch::Sender<usize>,
    is_control: Arc<AtomicBool>,
    /// Number of connections of this migration besides the control channel.
    others: Arc<AtomicUsize>,
    /// Treatment of the guest's memory.
    memory: watch::Sender<Memory>,
    _task: JoinSet<()>,
}

/// Treatment of the guest's memory. The connections of the memory are those after libvirt's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    /// The memory passes.
    Passes,
    /// The connections of the memory are closed.
    IsCut,
}

impl Network {
    /// Creates a network to a tunnel.
    pub(crate) async fn to(tunnel: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (held, cuts) = (watch::channel(HeldTraffic::Nothing).0, watch::channel(0).0);
        let is_control = Arc::new(AtomicBool::new(true));
        let (others, memory) = (Arc::new(AtomicUsize::new(0)), watch::channel(Memory::Passes).0);
        let way = Way {
            others: Arc::clone(&others),
            memory: memory.subscribe(),
            tunnel,
            held: held.subscribe(),
            cuts: cuts.subscribe(),
            is_control: Arc::clone(&is_control),
        };
        let mut task = JoinSet::new();
        task.spawn(way.accept(listener));
        Self {
            address,
            held,
            cuts,
            is_control,
            others,
            memory,
            _task: task,
        }
    }

    /// Expects a migration, whose first connection is its control channel and whose second is libvirt's connection.
    pub(crate) fn expect_migration(&self) {
        self.expect_control();
        self.others.store(0, Ordering::SeqCst);
        self.memory.send_replace(Memory::Passes);
    }

    /// Sets the treatment of the guest's memory from now on.
    pub(crate) fn memory(&self, memory: Memory) {
        self.memory.send_replace(memory);
    }

    /// Expects a control channel as the next connection.
    pub(crate) fn expect_control(&self) {
        self.is_control.store(true, Ordering::SeqCst);
    }

    /// Holds a part of the control channel, or lets all data pass.
    pub(crate) fn hold(&self, held: HeldTraffic) {
        self.held.send_replace(held);
    }

    /// Cuts the control channel. Held data is lost.
    pub(crate) fn cut(&self) {
        self.expect_control();
        self.cuts.send_modify(|cuts| *cuts += 1);
    }
}

struct Way {
    tunnel: SocketAddr,
    held: watch::Receiver<HeldTraffic>,
    cuts: watch::Receiver<usize>,
    is_control: Arc<AtomicBool>,
    others: Arc<AtomicUsize>,
    memory: watch::Receiver<Memory>,
}

impl Way {
    async fn accept(mut self, listener: TcpListener) {
        let mut connections = JoinSet::new();
        loop {
            let (source, _) = listener.accept().await.unwrap();
            self.held.wait_for(|held| *held == HeldTraffic::Nothing).await.unwrap();
            let Ok(target) = TcpStream::connect(self.tunnel).await else {
                continue;
            };
            let (from_source, to_source) = source.into_split();
            let (from_target, to_target) = target.into_split();
            if self.is_control.swap(false, Ordering::SeqCst) {
                let (mut cuts, held) = (self.cuts.clone(), self.held.clone());
                cuts.mark_unchanged();
                connections.spawn(async move {
                    tokio::select! {
                        // Data that was held until now is lost.
                        biased;
                        _ = cuts.changed() => {}
                        () = pass(from_source, to_target, Some((held.clone(), HeldTraffic::ToTarget))) => {}
                        () = pass(from_target, to_source, Some((held, HeldTraffic::ToSource))) => {}
                    }
                });
            } else if self.others.fetch_add(1, Ordering::SeqCst) == 0 {
                connections.spawn(pass(from_source, to_target, None));
                connections.spawn(pass(from_target, to_source, None));
            } else {
                let mut memory = self.memory.clone();
                connections.spawn(async move {
                    let both =
                        async { tokio::join!(pass(from_source, to_target, None), pass(from_target, to_source, None)) };
                    tokio::select! {
                        _ = memory.wait_for(|memory| *memory == Memory::IsCut) => {}
                        _ = both => {}
                    }
                });
            }
        }
    }
}

async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut hold: Option<(watch::Receiver<HeldTraffic>, HeldTraffic)>,
) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(read) = from.read(&mut buffer).await {
        if let Some((held, direction)) = &mut hold
            && held.wait_for(|held| held != direction).await.is_err()
        {
            return;
        }
        if read == 0 || to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
