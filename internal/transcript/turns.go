package transcript

// Turn is an atomic stretch of a message list: an assistant message with all
// the tool messages behind it, or a single message of another kind. A list is
// only ever cut between turns, since a result without its call (or a call
// without its results) is refused by strict servers and misread by lenient
// ones.
type Turn struct {
	Start, End int  // half-open range of message indices
	Role       Role // of the first message
}

// Len is the number of messages in the turn.
func (t Turn) Len() int { return t.End - t.Start }

// Turns splits a list into turns. Tool messages with no assistant message
// before them are turns of their own.
func Turns(list []Message) []Turn {
	var turns []Turn
	for i := 0; i < len(list); {
		t := Turn{Start: i, End: i + 1, Role: list[i].Role}
		if t.Role == Assistant {
			for t.End < len(list) && list[t.End].Role == Tool {
				t.End++
			}
		}
		turns = append(turns, t)
		i = t.End
	}
	return turns
}

// Sum adds up [Message.ContentBytes] over a list.
func Sum(list []Message) int {
	n := 0
	for i := range list {
		n += list[i].ContentBytes()
	}
	return n
}
