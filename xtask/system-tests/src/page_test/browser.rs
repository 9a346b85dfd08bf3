//! A headless Chromium, driven by chromedriver (W3C WebDriver) over HTTP on this machine.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use ureq::Agent;
use ureq::http::Request;

/// The key of an element in WebDriver's JSON.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";
/// No sandbox, because the test may run as root in a container. No connections to the vendor.
const ARGUMENTS: [&str; 9] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1250,1000",
];

pub(super) struct Browser {
    driver: Child,
    port: u16,
    client: Agent,
    session: String,
}

impl Browser {
    /// `profile` is an empty directory.
    pub(super) fn start(profile: &Path) -> Result<Browser> {
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("chromedriver cannot be run: install the package chromium-driver")?;
        let mut lines = BufReader::new(driver.stdout.take().context("no output")?).lines();
        let port = lines.by_ref().map_while(Result::ok).find_map(|line| {
            let (_, port) = line.split_once("started successfully on port ")?;
            port.trim_end_matches('.').parse().ok()
        });
        let mut browser = Browser {
            driver,
            port: port.context("chromedriver does not say its port")?,
            // The answer to a failed command says why. A proxy does not lead to this machine.
            client: Agent::config_builder()
                .http_status_as_error(false)
                .allow_non_standard_methods(true)
                .proxy(None)
                .build()
                .into(),
            session: String::new(),
        };
        let mut arguments: Vec<String> =
            ARGUMENTS.iter().map(|argument| (*argument).to_owned()).collect();
        arguments.push(format!("--user-data-dir={}", profile.display()));
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": {"args": arguments},
            "goog:loggingPrefs": {"browser": "ALL"},
        }}});
        let made = browser.ask("POST", "/session", Some(&wanted))?;
        browser.session = format!("/session/{}", made["sessionId"].as_str().context("no session")?);
        Ok(browser)
    }

    fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let uri = format!("http://127.0.0.1:{}{path}", self.port);
        let body = body.map_or(String::new(), Value::to_string);
        let request = Request::builder().method(method).uri(uri);
        let request = request.header("Content-Type", "application/json").body(body)?;
        let mut answer = self.client.run(request).with_context(|| format!("{method} {path}"))?;
        let value: Value = serde_json::from_reader(answer.body_mut().as_reader())?;
        match value["value"]["error"].as_str() {
            Some(error) => bail!("{method} {path}: {error}: {}", value["value"]["message"]),
            None => Ok(value["value"].clone()),
        }
    }

    fn tell(&self, path: &str, body: &Value) -> Result<Value> {
        self.ask("POST", &format!("{}{path}", self.session), Some(body))
    }

    /// Opens a page, and waits until it has unpacked its numbers.
    pub(super) fn open(&self, file: &Path) -> Result<()> {
        self.tell("/url", &json!({"url": format!("file://{}", file.display())}))?;
        self.run_to_end(
            "const done = arguments[0];
            const wait = () => 'ready' in document.documentElement.dataset
                ? requestAnimationFrame(() => requestAnimationFrame(() => done(0)))
                : setTimeout(wait, 20);
            wait();",
        )?;
        Ok(())
    }

    /// Runs a script and returns its result.
    pub(super) fn run(&self, script: &str) -> Result<Value> {
        self.tell("/execute/sync", &json!({"script": script, "args": []}))
    }

    /// Runs a script, which calls its only argument with its result.
    pub(super) fn run_to_end(&self, script: &str) -> Result<Value> {
        self.tell("/execute/async", &json!({"script": script, "args": []}))
    }

    /// Moves the mouse to a place of the window, and drags it to another one.
    pub(super) fn drag(&self, [x, y]: [i64; 2], [to_x, to_y]: [i64; 2]) -> Result<()> {
        let moves = json!([
            {"type": "pointerMove", "duration": 0, "x": x, "y": y},
            {"type": "pointerDown", "button": 0},
            {"type": "pointerMove", "duration": 50, "x": to_x, "y": to_y},
            {"type": "pointerUp", "button": 0},
        ]);
        let mouse = json!({"type": "pointer", "id": "mouse",
            "parameters": {"pointerType": "mouse"}, "actions": moves});
        self.tell("/actions", &json!({"actions": [mouse]}))?;
        Ok(())
    }

    /// A command of Chromium's own protocol.
    pub(super) fn command(&self, name: &str, parameters: &Value) -> Result<Value> {
        self.tell("/goog/cdp/execute", &json!({"cmd": name, "params": parameters}))
    }

    fn find(&self, selector: &str) -> Result<String> {
        let found = self.tell("/element", &json!({"using": "css selector", "value": selector}))?;
        Ok(found[ELEMENT].as_str().context("no element")?.to_owned())
    }

    pub(super) fn click(&self, selector: &str) -> Result<()> {
        self.tell(&format!("/element/{}/click", self.find(selector)?), &json!({}))?;
        Ok(())
    }

    pub(super) fn keys(&self, selector: &str, text: &str) -> Result<()> {
        self.tell(&format!("/element/{}/value", self.find(selector)?), &json!({"text": text}))?;
        Ok(())
    }

    /// The messages of the page's console since the last call.
    pub(super) fn complaints(&self) -> Result<Vec<Value>> {
        let log = self.tell("/se/log", &json!({"type": "browser"}))?;
        Ok(log.as_array().context("no log")?.clone())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() {
            // Ends Chromium. A failure does not matter at this point.
            let _ = self.ask("DELETE", &self.session, None);
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
