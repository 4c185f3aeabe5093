//! A viewer of a guest's display.
//!
//! The viewer implements the part of the protocol RFB 3.8 (RFC 6143) that shows whether the display responds.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{Cluster, session::Session, watching::until_some};

/// Width and height, in pixels, of the part of the screen that is requested.
const SIDE: u16 = 16;
/// Number of bytes of a pixel in QEMU's default format.
const PIXEL: usize = 4;

/// Returns the port in the output of `virtctl vnc --proxy-only`, which also contains log lines.
fn port(printed: &str) -> Option<u16> {
    let mut lines = printed
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.find_map(|line| u16::try_from(line["port"].as_u64()?).ok())
}

/// A viewer that is connected by `virtctl vnc`.
#[derive(Debug)]
pub struct Display {
    stream: TcpStream,
    _virtctl: Session,
}

impl Display {
    /// Connects to a guest's display and completes the handshake.
    ///
    /// # Errors
    /// If that fails.
    pub async fn open(cluster: &Cluster, guest: &str) -> Result<Self> {
        let virtctl = cluster.virtctl_begun(&["vnc", guest, "--proxy-only"])?;
        let port = until_some("the port of virtctl's proxy", || async { Ok(port(&virtctl.printed())) })
            .await
            .with_context(|| format!("virtctl printed {:?}", virtctl.printed()))?;
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        let mut display = Self {
            stream,
            _virtctl: virtctl,
        };
        let version = display.read::<12>()?;
        ensure!(&version == b"RFB 003.008\n", "{version:?}");
        display.stream.write_all(&version)?;
        let [count] = display.read()?;
        display.skip(usize::from(count))?;
        // Selects the security type None, whose result is 0.
        display.stream.write_all(&[1])?;
        ensure!(display.read::<4>()? == [0; 4], "the display requires a password");
        // Shared access: other viewers may stay connected.
        display.stream.write_all(&[1])?;
        let start = display.read::<24>()?;
        let name = u32::from_be_bytes([start[20], start[21], start[22], start[23]]);
        display.skip(usize::try_from(name)?)?;
        Ok(display)
    }

    /// Requests a part of the screen and reads it.
    ///
    /// # Errors
    /// If the display does not respond.
    pub fn refresh(&mut self) -> Result<()> {
        let [high, low] = SIDE.to_be_bytes();
        self.stream.write_all(&[3, 0, 0, 0, 0, 0, high, low, high, low])?;
        let [kind, _, high, low] = self.read()?;
        ensure!(kind == 0, "received message {kind} instead of an update");
        for _ in 0..u16::from_be_bytes([high, low]) {
            let [_, _, _, _, w1, w2, h1, h2, encoding @ ..] = self.read::<12>()?;
            ensure!(encoding == [0; 4], "encoding {encoding:?} was not requested");
            let (width, height) = (u16::from_be_bytes([w1, w2]), u16::from_be_bytes([h1, h2]));
            self.skip(usize::from(width) * usize::from(height) * PIXEL)?;
        }
        Ok(())
    }

    fn read<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn skip(&mut self, length: usize) -> Result<()> {
        Ok(self.stream.read_exact(&mut vec![0; length])?)
    }
}
