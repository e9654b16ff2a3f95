// Package config turns a YAML file, the environment and the command line into one
// checked [Config], or into the complete list of what is wrong with them.
//
// # Model
//
// [Config] is the whole configuration as plain values. Its struct tags are the only
// list of keys there is: the mapstructure tag names a key, the doc tag is its one-line
// description. [Keys] reads them back, so help texts, the shipped file and the
// documentation have one source.
//
// [Load] is a pure function of a [Source]: it reads no file, no environment and no
// clock, so a reload is another Load of a fresh Source. [Open] does the reading.
//
// # Rules
//
//   - A flag beats the environment, which beats the file, which beats [Default].
//   - Nothing is guessed: a key that does not exist, a duration without a unit, a
//     number in quotes and a key without a value are errors.
//   - Every problem is reported, not the first one ([Problems]), with its key, the value,
//     where the value came from and what to do. No secret is ever part of a message.
//   - Whatever Load returns without an error passes [Config.Validate].
//
// # Why the file is not left to viper
//
// viper merges the layers here, in an instance of its own for every Load, and is seen by no
// other package. It is handed values that already have their types, because left to
// itself it lower-cases keys, splits them at dots, lets a key without a value hide the
// defaults below it and reads "timeout: 30" as 30 nanoseconds. For the same reason
// everything that is keyed by a model's or a tool's name is a list with a name in each
// entry, never a map.
//
// # Must not know
//
// What the values are for: this package imports no other package of the program, opens no
// socket and writes no log.
package config
