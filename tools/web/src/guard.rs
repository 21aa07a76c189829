//! Which requests are refused: those of other sites, those under another name, and changes without
//! the token.
//!
//! A browser sends requests for any page that its user opens. Three headers tell ours from others:
//! `Host` (a foreign name that resolves to this machine: DNS rebinding), `Origin` and
//! `Sec-Fetch-Site`. A page of ours proves nothing more: a change needs the token in a header that
//! browsers never add by themselves.

use std::net::IpAddr;

use hyper::http::request::Parts;
use hyper::{Method, StatusCode, header};
use subtle::ConstantTimeEq;

/// The shortest token in bytes: as long as 96 random bits in base 64.
pub const TOKEN_BYTES_MIN: usize = 16;

/// The longest token in bytes.
const TOKEN_BYTES_MAX: usize = 4096;

/// What a client must know to change the server. It has no `Debug`, so that no log can show it.
pub struct Token(Vec<u8>);

impl Token {
    /// A token from the text of a file, without white space around it. The error is a sentence.
    pub fn of_text(text: &str) -> Result<Token, String> {
        let token = text.trim();
        if token.len() < TOKEN_BYTES_MIN {
            return Err(format!(
                "the token has {} bytes, {TOKEN_BYTES_MIN} are the least; `openssl rand -base64 24` prints a good one",
                token.len()
            ));
        }
        if token.len() > TOKEN_BYTES_MAX || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("the token must be one word of ASCII characters".into());
        }
        Ok(Token(token.into()))
    }

    /// Whether this is the token; takes the same time wherever they differ.
    fn is(&self, other: &[u8]) -> bool {
        self.0.ct_eq(other).into()
    }
}

/// Whether a request that arrived at an address may name this authority as its host.
pub type IsOwnHost = Box<dyn Fn(&[u8], IpAddr) -> bool>;

/// Checks requests.
pub struct Guard {
    /// Which hosts are this server.
    pub is_own_host: IsOwnHost,
    /// What allows changes; `None`: nothing does.
    pub token: Option<Token>,
}

/// A status and a sentence.
pub type Refusal = (StatusCode, String);

impl Guard {
    /// Refuses a request of another site or under another name.
    pub fn check(&self, request: &Parts, local: IpAddr) -> Result<(), Refusal> {
        let refuse = |why: &str| Err((StatusCode::FORBIDDEN, why.to_owned()));
        let mut hosts = request.headers.get_all(header::HOST).iter();
        let (Some(host), None) = (hosts.next(), hosts.next()) else {
            return Err((StatusCode::BAD_REQUEST, "exactly one Host header is needed".into()));
        };
        if !(self.is_own_host)(host.as_bytes(), local) {
            return refuse("this server has another name; --allow-host of octavo web adds one");
        }
        if let Some(origin) = request.headers.get(header::ORIGIN) {
            let of_http = origin.as_bytes().strip_prefix(b"http://");
            let authority = of_http.or(origin.as_bytes().strip_prefix(b"https://"));
            if authority != Some(host.as_bytes()) {
                return refuse("requests of other sites are refused");
            }
        }
        let word = |name: &str| request.headers.get(name).map(|value| value.as_bytes());
        let is_of_ours = matches!(word("sec-fetch-site"), None | Some(b"same-origin" | b"none"));
        // A link on another site may lead here: the page opens in a window of its own.
        let is_link = word("sec-fetch-mode") == Some(b"navigate")
            && word("sec-fetch-dest") == Some(b"document")
            && request.method == Method::GET
            && request.uri.path() == "/";
        if !is_of_ours && !is_link {
            return refuse("requests of other sites are refused");
        }
        Ok(())
    }

    /// Refuses a change without the token.
    pub fn check_change(&self, request: &Parts) -> Result<(), Refusal> {
        let Some(token) = &self.token else {
            let why = "this page only reads; start octavo web with --token-file to allow changes";
            return Err((StatusCode::FORBIDDEN, why.into()));
        };
        let given = request.headers.get(header::AUTHORIZATION).map(|value| value.as_bytes());
        let given = given.and_then(|value| value.strip_prefix(b"Bearer "));
        match given {
            None => Err((StatusCode::UNAUTHORIZED, "the token is missing".into())),
            Some(given) if !token.is(given) => Err((StatusCode::FORBIDDEN, "this is not the token".into())),
            Some(_) => Ok(()),
        }
    }
}
