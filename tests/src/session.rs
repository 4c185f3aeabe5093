//! Programs that run in the background of a test.

use std::{
    io::{Read, Write},
    process::{Child, ChildStdin, Command, Stdio},
    sync::Arc,
    thread,
};

use anyhow::{Context, Result};
use parking_lot::Mutex;
use tempfile::TempDir;

use crate::watching::until_some;

/// A program that runs in the background. It is killed when dropped.
#[derive(Debug)]
pub struct Session {
    child: Child,
    input: Option<ChildStdin>,
    output: Arc<Mutex<Vec<u8>>>,
    /// A folder that is deleted once the program has ended.
    folder: Option<TempDir>,
}

impl Session {
    /// Starts a program.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(crate) fn start(mut command: Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("{command:?}"))?;
        let output = Arc::new(Mutex::new(Vec::new()));
        for stream in [
            child
                .stdout
                .take()
                .map(|stream| Box::new(stream) as Box<dyn Read + Send>),
            child
                .stderr
                .take()
                .map(|stream| Box::new(stream) as Box<dyn Read + Send>),
        ]
        .into_iter()
        .flatten()
        {
            let output = Arc::clone(&output);
            thread::spawn(move || {
                let mut stream = stream;
                let mut buffer = [0; 4096];
                while let Ok(length) = stream.read(&mut buffer)
                    && length > 0
                {
                    let mut output = output.lock();
                    output.extend_from_slice(&buffer[..length]);
                }
            });
        }
        let input = child.stdin.take();
        Ok(Self {
            child,
            input,
            output,
            folder: None,
        })
    }

    /// Deletes a folder of the program once the program has ended.
    pub(crate) fn with_folder(mut self, folder: TempDir) -> Self {
        self.folder = Some(folder);
        self
    }

    /// Returns the output of the program so far.
    pub fn printed(&self) -> String {
        let output = self.output.lock();
        String::from_utf8_lossy(&output).into_owned()
    }

    /// Writes a text to the program's input.
    ///
    /// # Errors
    /// If the program has ended.
    pub fn write(&mut self, text: &str) -> Result<()> {
        let input = self.input.as_mut().context("the program's input is closed")?;
        input.write_all(text.as_bytes())?;
        Ok(input.flush()?)
    }

    /// Waits until the program has printed a text, and returns its output.
    ///
    /// # Errors
    /// If that does not happen in time.
    pub async fn until_printed(&self, text: &str) -> Result<String> {
        let what = format!("the program to print {text:?}");
        let found = until_some(&what, || async {
            Ok(Some(self.printed()).filter(|printed| printed.contains(text)))
        });
        found.await.with_context(|| format!("output: {:?}", self.printed()))
    }

    /// Waits until the program has ended, and returns whether it succeeded.
    ///
    /// # Errors
    /// If that does not happen in time.
    pub async fn until_ended(&mut self) -> Result<bool> {
        let child = Mutex::new(&mut self.child);
        let ended = until_some("the program to end", || async {
            let mut child = child.lock();
            Ok(child.try_wait()?)
        });
        let status = ended.await;
        status
            .map(|status| status.success())
            .with_context(|| format!("output: {:?}", self.printed()))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        drop(self.folder.take());
    }
}
