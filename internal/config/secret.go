package config

// secretMask stands for a secret wherever a value may be shown.
const secretMask = "********"

// Secret is a text that must not be shown. Every way of printing it gives a mask (or nothing,
// where it is empty); [Secret.Reveal] gives the text itself.
type Secret string

// Reveal returns the text. The result is an ordinary string: keep it out of logs and messages.
func (s Secret) Reveal() string { return string(s) }

// String returns the mask, or "" where there is no secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return secretMask
}

// GoString keeps %#v from showing the text.
func (s Secret) GoString() string { return `"` + s.String() + `"` }

// MarshalText keeps encoders (JSON, YAML, zap's reflection) from showing the text.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
