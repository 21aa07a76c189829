//! Child processes that end with their parent, and the control requests of the server.

use std::process::Stdio;
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::error::Result;
use crate::figures::{Counts, ServerStat};

/// Completes when the parent has closed this process's standard input, or is gone.
pub async fn parent_gone() {
    let mut bytes = [0; 64];
    while !matches!(tokio::io::stdin().read(&mut bytes).await, Ok(0) | Err(_)) {}
}

/// A process of this program, in a role such as `serve`. It ends when it is dropped.
pub struct Process {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts this program with other arguments.
    pub fn start(arguments: &[String]) -> Result<Process> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("a process has no pipes".into());
        };
        Ok(Process { child, input, output: BufReader::new(output).lines() })
    }

    /// Waits for the next line of the process's output.
    pub async fn line(&mut self) -> Result<String> {
        match self.output.next_line().await? {
            Some(line) => Ok(line),
            None => Err(format!("a process ended early: {}", self.child.wait().await?).into()),
        }
    }

    /// Sends a line, and returns the answer.
    pub async fn ask<T: DeserializeOwned>(&mut self, line: &str) -> Result<T> {
        self.input.write_all(format!("{line}\n").as_bytes()).await?;
        Ok(serde_json::from_str(&self.line().await?)?)
    }

    /// Ends the process, and waits until it is gone.
    pub async fn end(self) -> Result<()> {
        let Process { mut child, input, .. } = self;
        drop(input);
        if tokio::time::timeout(Duration::from_secs(10), child.wait()).await.is_err() {
            child.kill().await?;
        }
        Ok(())
    }
}

/// The server, as its clients see it.
#[derive(Clone, Debug)]
pub struct Server {
    pub port: u16,
}

impl Server {
    /// Returns what was counted since the last reset.
    pub async fn stat(&self) -> Result<ServerStat> {
        Ok(serde_json::from_str(&self.request("GET", "/_stats").await?)?)
    }

    /// The requests of the clients whose names begin with `prefix`.
    pub async fn counts(&self, prefix: &str) -> Result<Counts> {
        Ok(self.stat().await?.of(prefix))
    }

    /// Forgets what was counted.
    pub async fn reset(&self) -> Result<()> {
        self.request("POST", "/_reset").await.map(drop)
    }

    /// Sets the wait before the first byte of every answer.
    pub async fn delay(&self, delay: Duration) -> Result<()> {
        self.request("POST", &format!("/_delay?ms={}", delay.as_millis())).await.map(drop)
    }

    async fn request(&self, method: &str, path: &str) -> Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
        let head = format!("{method} {path} HTTP/1.0\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
        stream.write_all(head.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or("the server sent no answer")?;
        match head.contains(" 200 ") {
            true => Ok(body.to_owned()),
            false => Err(head.to_owned().into()),
        }
    }
}
