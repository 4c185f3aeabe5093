//! Replicas and API servers in one process, without a cluster. TLS and reviews are real, time is simulated.
//!
//! Simulated API servers send requests to each replica repeatedly, on new and on existing connections. They trust
//! exactly the bundle that was published some moments ago, and their clocks are wrong. Time advances only after each of
//! them has received its responses, so the test does not depend on its speed.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use drydock_core::{
    certificates::Lifetimes,
    configuration::{Certificates, Lifetime},
};
use drydock_runtime::{Process, ProcessError, Readiness, Registry};
use futures::stream;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use kube::core::{
    DynamicObject,
    admission::{AdmissionRequest, AdmissionResponse},
};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::{
    BUNDLE, CERTIFICATE, CertificateMetrics, KEY, SECRET, SIGNER_KEY, ServedCertificate,
    certificate_keeper::{CertificateAction, CertificateKeeper, Data},
};
use crate::webhook_server::{
    DEADLINE, Handlers, WebhookMetrics, WebhookServer,
    handlers::Handler,
    test_client::{TestConnection, review},
};

const NAME: &str = "drydock-webhooks.drydock.svc";
const PATH: &str = "/validate/virtualmachines";
/// Length of a moment: a quarter of the time that API servers have in these tests to read a published bundle.
const TICK: SignedDuration = SignedDuration::from_millis(400);

async fn allow(request: AdmissionRequest<DynamicObject>) -> AdmissionResponse {
    AdmissionResponse::from(&request)
}

/// Returns the lifetimes: 20 s for authorities, renewed after 10 s, and 10 s for certificates, renewed after 5 s.
fn lifetimes() -> Lifetimes {
    let lifetime = |seconds| Lifetime {
        duration: Duration::from_secs(seconds),
        renew_before: Duration::from_secs(seconds / 2),
    };
    Lifetimes::from(&Certificates {
        ca: lifetime(20),
        server: lifetime(10),
    })
}

/// State that API servers serve.
#[derive(Debug)]
struct ServedObjects {
    now: Timestamp,
    /// Published bundles, one for each moment, the newest last.
    bundles: Vec<Vec<u8>>,
    endpoints: BTreeMap<usize, SocketAddr>,
}

/// An API server, with its lag in moments and the offset of its clock in seconds.
struct ApiServer {
    lag: usize,
    skew: SignedDuration,
    known: Arc<Mutex<ServedObjects>>,
    seen: Arc<Mutex<BTreeSet<Vec<u8>>>>,
    rounds: watch::Sender<u64>,
}

impl ApiServer {
    /// Sends requests to all replicas until a response is wrong.
    async fn query_replicas(self) -> Result<Infallible> {
        let mut kept: BTreeMap<SocketAddr, TestConnection> = BTreeMap::new();
        loop {
            let (now, bundle, endpoints) = {
                let known = self.known.lock();
                let bundle = known.bundles.iter().rev().nth(self.lag).context("no bundle")?;
                (known.now, bundle.clone(), known.endpoints.clone())
            };
            kept.retain(|address, _| endpoints.values().any(|other| other == address));
            for (index, address) in endpoints {
                let place = format!("replica {index} at {now}");
                let mut fresh = TestConnection::open(address, NAME, &bundle, now + self.skew)
                    .await
                    .with_context(|| place.clone())?;
                self.seen.lock().insert(fresh.certificate.clone());
                question(&mut fresh).await.with_context(|| place.clone())?;
                let kept = kept.entry(address).or_insert(fresh);
                question(kept)
                    .await
                    .with_context(|| format!("{place}, on an old connection"))?;
            }
            self.rounds.send_modify(|rounds| *rounds += 1);
        }
    }
}

async fn question(connection: &mut TestConnection) -> Result<()> {
    let response = connection
        .send("POST", PATH, review("1").to_string().as_bytes())
        .await?;
    let review = response.review()?;
    ensure!(review["response"]["allowed"] == true, "{review}");
    Ok(())
}

/// One process of the controller.
struct Replica {
    process: Process,
    keeper: CertificateKeeper,
    readiness: Readiness,
    address: SocketAddr,
}

impl Replica {
    async fn start() -> Self {
        let process = Process::new();
        let readiness = Readiness::new();
        let certificate = ServedCertificate::new(readiness.handle("webhook certificate"));
        let server = WebhookServer {
            handlers: Handlers::from_iter([(PATH, Handler::from(allow))]),
            certificate: certificate.clone(),
            metrics: WebhookMetrics::register(&mut Registry::default()),
            leave: Duration::ZERO,
            deadline: DEADLINE,
        };
        let address = server.serve(&process, "127.0.0.1:0".parse().unwrap()).await.unwrap();
        let keeper = CertificateKeeper::new(
            SECRET,
            vec![NAME.into()],
            lifetimes(),
            certificate,
            CertificateMetrics::default(),
        );
        Self {
            process,
            keeper,
            readiness,
            address,
        }
    }
}

/// The objects of the API server, and the replicas that reconcile them.
struct RenewalWorld {
    now: Timestamp,
    secret: Option<Data>,
    /// Bundles of two webhooks.
    places: [Vec<u8>; 2],
    replicas: Vec<Replica>,
    leader: usize,
    certificates: BTreeSet<Vec<u8>>,
    authorities: BTreeSet<Vec<u8>>,
    known: Arc<Mutex<ServedObjects>>,
    rounds: Vec<watch::Receiver<u64>>,
    servers: Process,
}

impl RenewalWorld {
    async fn new() -> Self {
        let now = Timestamp::from_second(2_000_000_000).unwrap();
        let known = ServedObjects {
            now,
            bundles: Vec::new(),
            endpoints: BTreeMap::new(),
        };
        let mut world = Self {
            now,
            secret: None,
            places: [Vec::new(), Vec::new()],
            replicas: vec![Replica::start().await, Replica::start().await],
            leader: 0,
            certificates: BTreeSet::new(),
            authorities: BTreeSet::new(),
            known: Arc::new(Mutex::new(known)),
            rounds: Vec::new(),
            servers: Process::new(),
        };
        world.work(9);
        for _ in 0..4 {
            world.publish();
        }
        world
    }

    /// Starts the requests. An error ends the process of the API servers.
    fn start_queries(&mut self, seen: &Arc<Mutex<BTreeSet<Vec<u8>>>>) {
        for (lag, skew) in [(0, 1), (2, -1)] {
            let (rounds, receiver) = watch::channel(0);
            let server = ApiServer {
                lag,
                skew: SignedDuration::from_secs(skew),
                known: self.known.clone(),
                seen: seen.clone(),
                rounds,
            };
            self.rounds.push(receiver);
            let (servers, stopping) = (self.servers.clone(), self.servers.stopping());
            let name = format!("API server {lag}");
            self.servers.spawn_critical(name.clone(), async move {
                if let Some(Err(error)) = stopping.run_until_cancelled(server.query_replicas()).await {
                    servers.fail(ProcessError::Failed {
                        task: name.into(),
                        source: format!("{error:#}").into(),
                    });
                }
            });
        }
    }

    /// Lets all replicas observe and the leader take at most `steps` steps. After each step, all replicas observe
    /// again.
    fn work(&mut self, steps: usize) {
        self.observe();
        for _ in 0..steps {
            match self.replicas[self.leader].keeper.next(self.now).unwrap().action {
                None => break,
                Some(CertificateAction::Write(data)) => {
                    let count = |all: &mut BTreeSet<Vec<u8>>, key: &str| all.insert(data[key].0.clone());
                    count(&mut self.certificates, CERTIFICATE);
                    count(&mut self.authorities, SIGNER_KEY);
                    self.secret = Some(data);
                }
                Some(CertificateAction::Publish(bundle)) => self.places = [bundle.clone(), bundle],
            }
            self.observe();
        }
    }

    fn observe(&mut self) {
        for replica in &mut self.replicas {
            let places = self.places.to_vec();
            replica
                .keeper
                .observe(self.now, Some(places), Some(self.secret.as_ref()));
            replica.keeper.serve(self.now);
        }
    }

    /// Publishes the current state to the API servers: the ready replicas and the bundle.
    fn publish(&self) {
        let mut known = self.known.lock();
        known.now = self.now;
        known.bundles.push(self.places[0].clone());
        let ready = self
            .replicas
            .iter()
            .enumerate()
            .filter(|(_, replica)| replica.readiness.is_ready());
        known.endpoints = ready.map(|(index, replica)| (index, replica.address)).collect();
    }

    /// Waits until each API server has queried all replicas twice, at least once completely.
    async fn wait_for_rounds(&mut self) {
        for rounds in &mut self.rounds {
            let enough = *rounds.borrow() + 2;
            let reached = rounds.wait_for(|rounds| *rounds >= enough).await.is_ok();
            assert!(reached, "an API server was refused: {:?}", failure(&self.servers).await);
        }
    }

    /// Stops a replica after its endpoint has been removed, and starts another one instead.
    async fn restart(&mut self, index: usize) {
        self.known.lock().endpoints.remove(&index);
        self.wait_for_rounds().await;
        let next = Replica::start().await;
        let before = std::mem::replace(&mut self.replicas[index], next);
        before.process.stop();
        let ended = before
            .process
            .run(stream::pending::<&'static str>(), Duration::from_secs(60));
        ended.await.unwrap();
    }
}

/// Returns the error that a process ended with, or `nothing`.
async fn failure(process: &Process) -> String {
    let ended = process
        .run(stream::pending::<&'static str>(), Duration::from_secs(60))
        .await;
    ended.map_or_else(
        |error| drydock_runtime::chain(&error).to_string(),
        |()| "nothing".into(),
    )
}

fn garbage() -> Data {
    [BUNDLE, SIGNER_KEY, CERTIFICATE, KEY]
        .map(|key| (key.to_owned(), ByteString(b"garbage".to_vec())))
        .into()
}

#[tokio::test]
async fn client_is_never_refused_through_fifty_renewals() {
    let mut world = RenewalWorld::new().await;
    assert!(world.replicas.iter().all(|replica| replica.readiness.is_ready()));
    let seen = Arc::new(Mutex::new(BTreeSet::new()));
    world.start_queries(&seen);
    let mut copy = None;
    let mut tick = 0;
    while world.certificates.len() < 55 {
        tick += 1;
        assert!(tick < 3000, "it is not renewed any more");
        world.now += TICK;
        match tick % 97 {
            13 => world.restart(1 - world.leader).await,
            29 => world.leader = 1 - world.leader,
            // The leader itself restarts, and loses its state.
            41 => world.restart(world.leader).await,
            53 => world.secret = None,
            67 => copy = world.secret.clone(),
            79 => world.secret = Some(garbage()),
            91 => world.secret = copy.clone(),
            _ => {}
        }
        // Sometimes the leader is interrupted between two steps.
        world.work(if tick % 7 == 0 { 1 } else { 9 });
        world.publish();
        world.wait_for_rounds().await;
    }
    let certificates = seen.lock().len();
    assert!(certificates >= 50, "{certificates} certificates were shown");
    assert!(world.authorities.len() >= 25, "{} authorities", world.authorities.len());
    assert_eq!(world.known.lock().endpoints.len(), 2);
    let total: u64 = world.rounds.iter().map(|rounds| *rounds.borrow()).sum();
    world.servers.stop();
    assert_eq!(failure(&world.servers).await, "nothing");
    println!(
        "{tick} moments, {} certificates made, {certificates} shown, {} authorities, {total} rounds",
        world.certificates.len(),
        world.authorities.len()
    );
}

#[tokio::test]
async fn certificate_served_before_the_bundle_is_refused() {
    let mut world = RenewalWorld::new().await;
    let before = world.places[0].clone();
    // All certificates are replaced at once, without the usual stages.
    world.secret = None;
    world.places = [Vec::new(), Vec::new()];
    world.replicas = vec![Replica::start().await, Replica::start().await];
    world.now += TICK;
    world.work(9);
    let address = world.replicas[0].address;
    let refused = TestConnection::open(address, NAME, &before, world.now)
        .await
        .unwrap_err();
    assert!(format!("{refused:#}").contains("UnknownIssuer"), "{refused:#}");
    TestConnection::open(address, NAME, &world.places[0], world.now)
        .await
        .unwrap();
}
