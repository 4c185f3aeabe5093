# Flattens the plain part of YAML (and so JSON) to lines of "path<tab>value".
# Supports maps and lists by indentation, flow maps and lists, quotes,
# block texts (| and >) and comments. Anchors, tags and several documents are
# not supported. In values, backslash, tab and newline are written as escapes.

{ line[++count] = $0 }

END { at = 1; block_node("", 0) }

function indent_of(text) { match(text, /^ */); return RLENGTH }

function trim(text) { sub(/^[ \t]+/, "", text); sub(/[ \t\r]+$/, "", text); return text }

function spaces(number,   text) { text = sprintf("%" number "s", ""); return text }

function join(prefix, key) { return prefix == "" ? key : prefix "." key }

# printf's %b interprets these escapes. gsub is not used, because the number of
# backslashes that its replacement needs differs between implementations of awk.
function emit(path, value,   position, character, result) {
    result = ""
    for (position = 1; position <= length(value); position++) {
        character = substr(value, position, 1)
        if (character == "\\") character = "\\\\"
        else if (character == "\n") character = "\\n"
        else if (character == "\t") character = "\\t"
        result = result character
    }
    printf "%s\t%s\n", path, result
}

function skip() {
    while (at <= count && line[at] ~ /^[ \t\r]*(#.*)?$|^---|^\.\.\.$/) at++
    return at <= count
}

# Parses the node at the next line, if the line is indented by at least `least`.
function block_node(path, least,   depth, text) {
    if (!skip()) return
    depth = indent_of(line[at])
    if (depth < least) { emit(path, ""); return }
    text = substr(line[at], depth + 1)
    if (text ~ /^-( |\r?$)/) block_list(path, depth)
    else if (text !~ /^[{[]/ && key_length(text)) block_map(path, depth)
    else scalar(path, text, depth - 1)
}

function block_list(path, depth,   number, text, offset) {
    number = 0
    while (skip() && indent_of(line[at]) == depth && substr(line[at], depth + 1) ~ /^-( |\r?$)/) {
        text = substr(line[at], depth + 2)
        offset = depth + 1 + indent_of(text)
        text = trim(text)
        if (text == "" || text ~ /^#/) { at++; block_node(join(path, number), depth + 1) }
        else if (text ~ /^- / || (text !~ /^[{["'|>]/ && key_length(text))) {
            # A map or list that begins behind the dash.
            line[at] = spaces(offset) text
            block_node(join(path, number), offset)
        } else scalar(join(path, number), text, depth)
        number++
    }
}

function block_map(path, depth,   text, length_, key, rest) {
    while (skip() && indent_of(line[at]) == depth) {
        text = substr(line[at], depth + 1)
        length_ = key_length(text)
        if (!length_) { at++; continue }
        key = unquote(trim(substr(text, 1, length_ - 1)))
        rest = trim(substr(text, length_ + 1))
        if (rest == "" || rest ~ /^#/) {
            at++
            # A list may have the same indentation as its key.
            if (skip() && indent_of(line[at]) == depth && substr(line[at], depth + 1) ~ /^-( |\r?$)/)
                block_list(join(path, key), depth)
            else block_node(join(path, key), depth + 1)
        } else scalar(join(path, key), rest, depth)
    }
}

# Length of a key with its colon, 0 if the text does not begin with one.
function key_length(text) {
    if (match(text, /^("[^"]*"|'[^']*')[ ]*:/)) return substr(text, RLENGTH + 1) ~ /^([ \t\r]|$)/ ? RLENGTH : 0
    if (text ~ /^["'{[]/) return 0
    return match(text, /:([ \t\r]|$)/)
}

# Parses a value that begins on the current line and belongs to a node at `depth`.
function scalar(path, text, depth,   value) {
    if (text ~ /^[|>][-+0-9]*[ \t]*(#.*)?\r?$/) { block_text(path, text, depth); return }
    if (text ~ /^[{[]/) {
        at++
        while (!balanced(text) && at <= count) text = text " " trim(line[at++])
        flow_text = text; flow_at = 1
        flow(path)
        return
    }
    at++
    if (text ~ /^"/ || text ~ /^'/) {
        while (!closed(text) && at <= count) text = text " " trim(line[at++])
        flow_text = text; flow_at = 1
        emit(path, quoted())
        return
    }
    value = uncomment(text)
    while (at <= count && line[at] !~ /^[ \t\r]*$/ && indent_of(line[at]) > depth && line[at] !~ /^ *#/)
        value = value " " uncomment(trim(line[at++]))
    emit(path, value ~ /^(~|null)$/ ? "" : value)
}

function uncomment(text) { sub(/[ \t]+#.*$/, "", text); return trim(text) }

function block_text(path, mark, depth,   inner, text, value, folded, keep, strip, empty) {
    folded = mark ~ /^>/; strip = mark ~ /^[|>][0-9]*-/; keep = mark ~ /^[|>][0-9]*\+/
    inner = -1; value = ""; empty = ""
    at++
    while (at <= count) {
        text = line[at]; sub(/\r$/, "", text)
        if (text ~ /^ *$/) { empty = empty "\n"; at++; continue }
        if (indent_of(text) <= depth) break
        if (inner < 0) inner = indent_of(text)
        if (indent_of(text) < inner) break
        if (folded && value != "" && empty == "") { sub(/\n$/, " ", value) }
        value = value empty substr(text, inner + 1) "\n"
        empty = ""
        at++
    }
    if (keep) value = value empty
    if (strip) sub(/\n+$/, "", value)
    emit(path, value)
}

function balanced(text,   position, character, quote, open) {
    open = 0; quote = ""
    for (position = 1; position <= length(text); position++) {
        character = substr(text, position, 1)
        if (quote != "") {
            if (quote == "\"" && character == "\\") position++
            else if (character == quote) quote = ""
        } else if (character == "\"" || character == "'") quote = character
        else if (character ~ /[{[]/) open++
        else if (character ~ /[]}]/) open--
    }
    return open <= 0
}

function closed(text,   quote, position, character) {
    quote = substr(text, 1, 1)
    for (position = 2; position <= length(text); position++) {
        character = substr(text, position, 1)
        if (quote == "\"" && character == "\\") position++
        else if (character == quote) return 1
    }
    return 0
}

function blank() { while (substr(flow_text, flow_at, 1) ~ /[ \t]/) flow_at++ }

# Parses a value in flow style at flow_at.
function flow(path,   number, key, close_, character) {
    blank()
    character = substr(flow_text, flow_at, 1)
    if (character == "{" || character == "[") {
        close_ = character == "{" ? "}" : "]"
        flow_at++
        number = 0
        while (1) {
            blank()
            character = substr(flow_text, flow_at, 1)
            if (character == "" || character == close_) { flow_at++; return }
            if (character == ",") { flow_at++; continue }
            if (close_ == "}") {
                key = flow_scalar(":")
                blank()
                if (substr(flow_text, flow_at, 1) == ":") flow_at++
            } else key = number++
            flow(join(path, key))
        }
    }
    emit(path, flow_scalar(""))
}

function flow_scalar(also,   begin, character) {
    blank()
    character = substr(flow_text, flow_at, 1)
    if (character == "\"" || character == "'") return quoted()
    begin = flow_at
    while (flow_at <= length(flow_text)) {
        character = substr(flow_text, flow_at, 1)
        if (character ~ /[],}]/ || (also != "" && character == also)) break
        flow_at++
    }
    character = trim(substr(flow_text, begin, flow_at - begin))
    return character ~ /^(~|null)$/ ? "" : character
}

# A quoted text at flow_at.
function quoted(   quote, value, character) {
    quote = substr(flow_text, flow_at++, 1)
    value = ""
    while (flow_at <= length(flow_text)) {
        character = substr(flow_text, flow_at++, 1)
        if (character == quote) {
            if (quote == "'" && substr(flow_text, flow_at, 1) == "'") { value = value "'"; flow_at++; continue }
            return value
        }
        if (character == "\\" && quote == "\"") {
            character = substr(flow_text, flow_at++, 1)
            if (character == "n") character = "\n"
            else if (character == "t") character = "\t"
            else if (character == "r") character = "\r"
            else if (character == "u") {
                character = sprintf("%c", hexadecimal(substr(flow_text, flow_at, 4)))
                flow_at += 4
            }
        }
        value = value character
    }
    return value
}

function hexadecimal(text,   position, result) {
    result = 0
    for (position = 1; position <= length(text); position++)
        result = result * 16 + index("0123456789abcdef", tolower(substr(text, position, 1))) - 1
    return result
}

function unquote(text) {
    if (text ~ /^".*"$/ || text ~ /^'.*'$/) return substr(text, 2, length(text) - 2)
    return text
}
