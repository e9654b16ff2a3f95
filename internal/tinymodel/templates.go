package tinymodel

import _ "embed"

// Template is a forgiving chat template in the manner of Qwen's: it renders
// whatever history it is given.
//
//go:embed chatml.jinja
var Template string

// TemplateStrict raises on histories that are not well-formed: without any user
// message, with user and assistant not taking turns, with a tool result that no
// call asked for or a call without its result. The server passes what it raises
// on to the client as an error.
//
//go:embed strict.jinja
var TemplateStrict string

// TemplateThinking renders reasoning_content, but only in assistant messages
// behind the last user message. Appending a user message to a tool loop
// therefore changes the prompt from the loop's start, and the cache with it.
// With the template argument enable_thinking set to false the answer begins
// behind an empty block of thoughts.
//
//go:embed thinking.jinja
var TemplateThinking string
