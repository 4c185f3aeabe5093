//! The endpoints of operations on guests: the agents of guests, and sockets in their networks.

use std::{io, net::SocketAddr, time::Duration};

use axum::{
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use drydock_api::{
    kubevirt::VirtualMachineInstance,
    node_api::{self, GuestCommand, GuestReport, GuestStream, NodeApiRefusal, RefusalReason},
};
use drydock_core::subresources::{
    SubresourceError, SubresourceTarget,
    guest_commands::{self, ForwardedPort, Transport},
    options::{self, is_dry_run, read},
};
use drydock_runtime::tcp::KeepAlive;
use kube::ResourceExt;
use tokio::{net::UdpSocket, time::timeout};

use super::{calls::ApiCalls, datagrams::Datagrams, websocket::Duplex};

/// Time limit for connecting to a port of a guest.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// An open connection to a guest.
pub(super) struct Connected {
    /// Instance at the time of the connection.
    pub(super) instance: VirtualMachineInstance,
    /// Connection to the guest.
    pub(super) peer: Box<dyn Duplex>,
}

impl ApiCalls {
    /// Sends a command to the guest of an instance.
    pub(super) async fn command(
        &self,
        target: &SubresourceTarget,
        command: GuestCommand,
        body: &[u8],
    ) -> Result<Response, SubresourceError> {
        let options: options::CommandOptions = read(body)?;
        let dry_run = is_dry_run(options.dry_run.as_deref())?;
        self.send_command(target, command, dry_run).await
    }

    /// Freezes the file systems of the guest of an instance.
    pub(super) async fn freeze(&self, target: &SubresourceTarget, body: &[u8]) -> Result<Response, SubresourceError> {
        let options: options::Freeze = read(body)?;
        let thaw_after = options.thaw_after()?;
        self.send_command(target, GuestCommand::Freeze { thaw_after }, false)
            .await
    }

    async fn send_command(
        &self,
        target: &SubresourceTarget,
        command: GuestCommand,
        dry_run: bool,
    ) -> Result<Response, SubresourceError> {
        let found = self.instance(target).await?;
        let checked = guest_commands::command(&target.name, found.as_ref(), command)?;
        if dry_run {
            return Ok(StatusCode::OK.into_response());
        }
        let node = guest_commands::node(checked)?;
        let uid = checked.uid().unwrap_or_default();
        let request = node_api::NodeApiRequest::Command(&uid, command);
        match self.agents.command(node, request).await {
            Ok(()) => Ok(StatusCode::OK.into_response()),
            Err(refusal) => Err(guest_commands::refused(&target.name, &refusal)),
        }
    }

    /// Reads a report about the guest of an instance.
    pub(super) async fn report(
        &self,
        target: &SubresourceTarget,
        report: GuestReport,
    ) -> Result<Response, SubresourceError> {
        let found = self.instance(target).await?;
        let checked = guest_commands::report(&target.name, found.as_ref(), report)?;
        let node = guest_commands::node(checked)?;
        let uid = checked.uid().unwrap_or_default();
        let read = self
            .agents
            .report(node, node_api::NodeApiRequest::Report(&uid, report))
            .await;
        let (media_type, content) = read.map_err(|refusal| guest_commands::refused(&target.name, &refusal))?;
        Ok(([(CONTENT_TYPE, media_type)], content).into_response())
    }

    /// Opens a stream of the guest of an instance. If the guest has left its node in the meantime, the instance is read
    /// once more.
    pub(super) async fn stream(
        &self,
        target: &SubresourceTarget,
        stream: GuestStream,
        preserve: bool,
    ) -> Result<Connected, SubresourceError> {
        match self.try_stream(target, stream, preserve).await? {
            Err(refusal) if refusal.reason == RefusalReason::NotHere => {
                self.try_stream(target, stream, preserve).await?
            }
            result => result,
        }
        .map_err(|refusal| guest_commands::refused(&target.name, &refusal))
    }

    async fn try_stream(
        &self,
        target: &SubresourceTarget,
        stream: GuestStream,
        preserve: bool,
    ) -> Result<Result<Connected, NodeApiRefusal>, SubresourceError> {
        let found = self.instance(target).await?;
        let instance = guest_commands::stream(&target.name, found.as_ref(), stream)?.clone();
        let node = guest_commands::node(&instance)?;
        let uid = instance.uid().unwrap_or_default();
        let request = node_api::NodeApiRequest::Stream(&uid, stream, preserve);
        let opened = self.agents.stream(node, request).await;
        Ok(opened.map(|peer| Connected { instance, peer }))
    }

    /// Connects to a port of the guest of an instance, or of the instance of a machine.
    pub(super) async fn port_forward(&self, target: &SubresourceTarget) -> Result<Connected, SubresourceError> {
        let port = guest_commands::port(&target.rest)?;
        let instance = self.started_instance(target).await?;
        let address = guest_commands::address(&target.name, &instance)?;
        let address = SocketAddr::new(address, port.number);
        let peer = connect(address, port).await.map_err(|error| {
            let network = match port.transport {
                Transport::Tcp => "tcp",
                Transport::Udp => "udp",
            };
            SubresourceError::internal(format!("dialing VM: dial {network} {address}: connect: {error}"))
        })?;
        Ok(Connected { instance, peer })
    }
}

async fn connect(address: SocketAddr, port: ForwardedPort) -> io::Result<Box<dyn Duplex>> {
    match port.transport {
        Transport::Tcp => {
            // The connection has no TCP user timeout, which would also end the connection to a guest that reads nothing
            // for a long time, such as a paused one.
            let stream = timeout(CONNECT_TIMEOUT, KeepAlive::FOR_USERS.connect(address)).await??;
            Ok(Box::new(stream))
        }
        Transport::Udp => {
            let any: SocketAddr = if address.is_ipv4() {
                ([0, 0, 0, 0], 0).into()
            } else {
                ([0_u16; 8], 0).into()
            };
            let socket = UdpSocket::bind(any).await?;
            socket.connect(address).await?;
            Ok(Box::new(Datagrams(socket)))
        }
    }
}
