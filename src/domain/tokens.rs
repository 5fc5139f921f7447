//! The tokens of a text of SQL or PL/pgSQL, as far as its meaning goes: without comments and blanks between them.

/// A token as it counts: unquoted names in lower case, all else as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Token {
    /// A name, or a key word.
    Name(String),
    /// A literal with its quotes, a number, or an operator's character.
    Other(String),
}

impl Token {
    pub fn text(&self) -> &str {
        match self {
            Self::Name(text) | Self::Other(text) => text,
        }
    }
}

/// Divides a text. One that ends within a literal or a comment ends its last token there.
pub fn tokens(text: &str) -> Vec<Token> {
    let mut rest = text;
    let mut tokens = vec![];
    while let Some(first) = rest.chars().next() {
        let length = match first {
            _ if first.is_whitespace() => {
                rest = rest.trim_start();
                continue;
            }
            '-' if rest.starts_with("--") => {
                rest = &rest[rest.find('\n').unwrap_or(rest.len())..];
                continue;
            }
            '/' if rest.starts_with("/*") => {
                rest = &rest[comment(rest)..];
                continue;
            }
            'e' | 'E' if rest[1..].starts_with('\'') => 1 + quoted(&rest[1..], '\'', true),
            '\'' => quoted(rest, '\'', false),
            '"' => {
                let length = quoted(rest, '"', false);
                let inner = &rest[1..length];
                let inner = inner.strip_suffix('"').unwrap_or(inner);
                tokens.push(Token::Name(inner.replace("\"\"", "\"")));
                rest = &rest[length..];
                continue;
            }
            '$' => dollar_quoted(rest).unwrap_or(1),
            _ if is_name_start(first) => {
                let length = rest.find(|c| !is_name_part(c)).unwrap_or(rest.len());
                tokens.push(Token::Name(rest[..length].to_lowercase()));
                rest = &rest[length..];
                continue;
            }
            '0'..='9' => rest.find(|c: char| !c.is_alphanumeric() && c != '.').unwrap_or(rest.len()),
            _ => first.len_utf8(),
        };
        tokens.push(Token::Other(rest[..length].to_owned()));
        rest = &rest[length..];
    }
    tokens
}

fn is_name_start(c: char) -> bool {
    c.is_alphabetic() || c == '_' || !c.is_ascii()
}

fn is_name_part(c: char) -> bool {
    is_name_start(c) || c.is_ascii_digit() || c == '$'
}

/// How long a comment is that begins here; they nest.
fn comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        if text[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if text[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                break;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    at
}

/// How long a literal is that begins here with its quote; a doubled quote does not end it, nor one behind a backslash where
/// that escapes.
fn quoted(text: &str, quote: char, escapes: bool) -> usize {
    let mut characters = text.char_indices().skip(1).peekable();
    while let Some((at, c)) = characters.next() {
        match c {
            '\\' if escapes => drop(characters.next()),
            _ if c != quote => {}
            _ if characters.next_if(|(_, next)| *next == quote).is_some() => {}
            _ => return at + 1,
        }
    }
    text.len()
}

/// How long `$tag$ … $tag$` is, if that begins here.
fn dollar_quoted(text: &str) -> Option<usize> {
    let tag = text[1..].find('$').map(|end| &text[..end + 2])?;
    let inner = &tag[1..tag.len() - 1];
    if !inner.chars().all(|c| is_name_start(c) || c.is_ascii_digit())
        || inner.starts_with(|c: char| c.is_ascii_digit())
    {
        return None;
    }
    let end = text[tag.len()..].find(tag).map_or(text.len(), |end| 2 * tag.len() + end);
    Some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<String> {
        tokens(text).iter().map(|token| token.text().to_owned()).collect()
    }

    #[test]
    fn blanks_comments_and_the_case_of_names_do_not_count() {
        let plain = texts("SELECT a+1 FROM s.t WHERE x='It''s'");
        assert_eq!(plain, ["select", "a", "+", "1", "from", "s", ".", "t", "where", "x", "=", "'It''s'"]);
        let other = texts("select  A + 1 -- one\n/* two /* three */ -- */ from \"s\" . T\nwhere x = 'It''s'");
        assert_eq!(plain, other);
    }

    #[test]
    fn literals_are_kept_as_they_are() {
        for literal in [
            "'a -- b'",
            "'a /* b'",
            "E'it\\'s'",
            "e'\\\\'",
            "$$ a 'b $x $$",
            "$tag$ $$ $other$ $tag$",
            "$é$ x $é$",
            "''",
            "1.5e10",
            "'open",
            "$$open",
        ] {
            assert_eq!(texts(&format!("  {literal}")), [literal]);
        }
        assert_eq!(texts("$1+$2"), ["$", "1", "+", "$", "2"]);
        assert_eq!(tokens("\"A \"\"b\"\"\""), [Token::Name("A \"b\"".to_owned())]);
        assert_eq!(texts("größe € /* open"), ["größe", "€"]);
    }
}
