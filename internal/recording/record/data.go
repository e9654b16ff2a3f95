package main

import (
	"fmt"
	"strings"
)

// dice is a small linear congruential generator. The files made with it are
// part of recordings that must come out the same with every version of Go, so
// it does not lean on math/rand.
type dice uint64

// below returns a number from 0 to n-1.
func (d *dice) below(n int) int {
	*d = *d*6364136223846793005 + 1442695040888963407
	return int(uint64(*d>>33) % uint64(n))
}

// pick returns one of the choices.
func pick[T any](d *dice, choices []T) T { return choices[d.below(len(choices))] }

// generated makes the files of a project that are data rather than code.
func generated(project string) map[string]string {
	switch project {
	case "ledger":
		return map[string]string{
			"data/2024.journal":                             bookkeeping(),
			"internal/importer/testdata/export-2024-05.csv": bankExport(),
			"logs/nightly.log":                              nightlyLog(),
		}
	case "depot":
		return map[string]string{"logs/worker.log": workerLog()}
	default:
		return nil
	}
}

// shop is somebody who gets money.
type shop struct {
	name, account, purpose string
	low, high              int // in cents
}

var shops = []shop{
	{"Kornblatt Bakery", "expenses:food:bread", "Card payment, shop 12", 240, 1890},
	{"Green Grocer Lindqvist", "expenses:food:fruit", "Card payment, till 3", 410, 3450},
	{"Harbour Market", "expenses:food:groceries", "Card payment, till 7", 1250, 11200},
	{"City Utilities Inc", "expenses:home:energy", "Instalment contract 88-204", 8900, 14200},
	{"Tallow & Finch Books", "expenses:leisure:books", "Order 5", 890, 6400},
	{"Northern Rail", "expenses:travel:train", "Ticket, second class", 1490, 12900},
	{"Bicycle Works", "expenses:travel:bicycle", "Repair order", 1500, 18000},
	{"Meadow Pharmacy", "expenses:health", "Card payment", 480, 5200},
	{"Hardware; Tools & More", "expenses:home:repair", "Card payment, branch 2", 350, 16400},
	{"Café Mélange", "expenses:food:out", "Card payment", 390, 2800},
	{"Radio Cooperative", "expenses:leisure:radio", "Membership fee", 1200, 1200},
}

// bookkeeping is four months of a household as a journal.
func bookkeeping() string {
	d := dice(2024)
	var b strings.Builder
	b.WriteString("; household 2024\n; one file a year, newest at the end\n\naccount assets:bank:checking\naccount assets:cash\naccount expenses:unsorted\n\n")
	b.WriteString("2024-01-01 Opening balances\n    assets:bank:checking     4_180.22 EUR\n    assets:cash                 65.00 EUR\n    equity:opening\n\n")
	reference := 100
	days := []int{31, 29, 31, 30}
	for month := 1; month <= 4; month++ {
		for day := 1; day <= days[month-1]; day++ {
			if day == 1 {
				fmt.Fprintf(&b, "2024-%02d-01 * Seven Gables Housing ; rent #fixed ref:R%02d\n    expenses:home:rent         940.00 EUR\n    assets:bank:checking\n\n", month, month)
			}
			if day == 28 {
				fmt.Fprintf(&b, "2024-%02d-28 * Northwind Ltd ; salary #fixed ref:S%02d\n    assets:bank:checking     2_850.00 EUR\n    income:salary\n\n", month, month)
			}
			if d.below(100) < 30 {
				continue
			}
			s := pick(&d, shops)
			cents := s.low + d.below(s.high-s.low+1)
			reference += 1 + d.below(4)
			name := s.name
			if strings.Contains(name, ";") {
				name = `"` + name + `"`
			}
			switch d.below(9) {
			case 0:
				fmt.Fprintf(&b, "2024-%02d-%02d %s ; cash\n    %-24s %7d.%02d EUR\n    assets:cash\n\n", month, day, name, s.account, cents/100, cents%100)
			default:
				fmt.Fprintf(&b, "2024-%02d-%02d * %s ; %s ref:B%d\n    %-24s %7d.%02d EUR\n    assets:bank:checking\n\n", month, day, name, strings.ToLower(s.purpose), reference, s.account, cents/100, cents%100)
			}
		}
	}
	return b.String()
}

// bankExport is the export of May in the bank's new form: a byte order mark,
// semicolons, everything quoted, decimal commas, German dates, and a closing
// balance as the last row.
func bankExport() string {
	d := dice(505)
	var b strings.Builder
	b.WriteString("\ufeff\"Booking date\";\"Value date\";\"Payee\";\"Purpose\";\"IBAN\";\"Amount\";\"Currency\";\"Bank reference\"\r\n")
	balance := 863179 // what the journal has at the end of April
	for i := range 96 {
		day := 1 + i*31/96
		s := pick(&d, shops)
		cents := -(s.low + d.below(s.high-s.low+1))
		name, purpose := s.name, s.purpose
		switch i {
		case 0:
			name, purpose, cents = "Seven Gables Housing", "Rent May", -94000
		case 84:
			name, purpose, cents = "Northwind Ltd", "Salary May", 285000
		case 41:
			name, purpose, cents = "Aunt Mathilda", "for your \"\"new\"\" bicycle", 123456
		case 60:
			cents = -7
		}
		balance += cents
		fmt.Fprintf(&b, "\"%02d.05.2024\";\"%02d.05.2024\";\"%s\";\"%s\";\"XX00 0000 %04d %04d\";\"%s\";\"EUR\";\"M%05d\"\r\n",
			day, min(31, day+d.below(3)), name, purpose, d.below(10000), d.below(10000), decimalComma(cents), 40000+i*7)
	}
	fmt.Fprintf(&b, "\"Closing balance 31.05.2024\";\"\";\"\";\"\";\"\";\"%s\";\"EUR\";\"\"\r\n", decimalComma(balance))
	return b.String()
}

// decimalComma writes cents as 1.234,56.
func decimalComma(cents int) string {
	sign := ""
	if cents < 0 {
		sign, cents = "-", -cents
	}
	whole := fmt.Sprint(cents / 100)
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "." + whole[i:]
	}
	return fmt.Sprintf("%s%s,%02d", sign, whole, cents%100)
}

// nightlyLog is what the server wrote in the nights around the bank's change.
func nightlyLog() string {
	d := dice(77)
	var b strings.Builder
	run := 400
	for day := 25; day <= 34; day++ {
		month, monthDay := 4, day
		if day > 30 {
			month, monthDay = 5, day-30
		}
		second := 0
		line := func(level, part, format string, args ...any) {
			second += d.below(4)
			fmt.Fprintf(&b, "2024-%02d-%02dT02:%02d:%02dZ %-5s run=%d %s: %s\n", month, monthDay, second/60, second%60, level, run, part, fmt.Sprintf(format, args...))
		}
		line("INFO", "nightly", "start, host=cellar, keep=14 days")
		line("DEBUG", "fetch", "GET exports list, 200, %d entries", 11+day)
		for i := range 12 {
			line("DEBUG", "fetch", "statement %02d unchanged, etag %08x%08x", i+1, d.below(1<<31), d.below(1<<31))
		}
		name := fmt.Sprintf("export-2024-%02d.csv", month)
		line("INFO", "fetch", "%s, %d bytes, sha256 %08x%08x...", name, 4000+d.below(9000), d.below(1<<31), d.below(1<<31))
		if month == 4 {
			rows := 60 + monthDay
			line("INFO", "import", "profile classic, %d rows, %d new", rows, d.below(6))
			for range 1 + d.below(4) {
				s := pick(&d, shops)
				line("DEBUG", "import", "new %q -> %s", s.name, s.account)
			}
			line("INFO", "check", "journal has no problems")
			line("INFO", "nightly", "done")
		} else {
			for attempt := 1; attempt <= 5; attempt++ {
				line("ERROR", "import", "exports/%s: no profile fits the header: no column Date, Counterparty, Purpose, Amount, Currency", name)
				line("WARN", "nightly", "attempt %d of 5 failed, exit status 1, waiting %d s", attempt, 30*attempt)
			}
			line("ERROR", "nightly", "giving up, journal left as it was, mail to treasurer queued")
		}
		for range 3 {
			line("DEBUG", "backup", "chunk %04x%04x stored, %d bytes", d.below(1<<16), d.below(1<<16), 2000+d.below(60000))
		}
		line("INFO", "backup", "data/2024.journal stored, %d versions kept", 14)
		run++
	}
	return b.String()
}

// workerLog is a day of a parcel depot's worker: one enormous file in which a
// single parcel goes wrong.
func workerLog() string {
	d := dice(4711)
	var b strings.Builder
	second := 6 * 3600
	stations := []string{"inbound", "scale", "scanner-1", "scanner-2", "sorter", "chute-04", "chute-11", "chute-17", "outbound"}
	for i := range 1090 {
		second += 20 + d.below(50)
		parcel := 480000 + i
		clock := fmt.Sprintf("%02d:%02d:%02d", second/3600%24, second/60%60, second%60)
		weight := fmt.Sprintf("%d.%03d", d.below(31), d.below(1000))
		switch {
		case i == 613:
			fmt.Fprintf(&b, "%s INFO  scale      parcel=%d weight=-0.000kg tare=0.412kg zone=N7\n", clock, parcel)
			fmt.Fprintf(&b, "%s ERROR sorter     parcel=%d rate: negative weight class, parcel left on the belt\n", clock, parcel)
			fmt.Fprintf(&b, "%s WARN  sorter     belt 3 stopped by light barrier LB-3-09, reason=parcel_on_belt\n", clock)
		case i > 613 && i < 640:
			fmt.Fprintf(&b, "%s WARN  %-10s parcel=%d waiting, belt 3 stopped since parcel=480613\n", clock, pick(&d, stations), parcel)
		case i%97 == 0:
			fmt.Fprintf(&b, "%s INFO  worker     heartbeat queue=%d uptime=%ds\n", clock, d.below(40), second-6*3600)
		default:
			fmt.Fprintf(&b, "%s INFO  %-10s parcel=%d weight=%skg zone=%c%d route=%02d-%03d ok\n", clock, pick(&d, stations), parcel, weight, "NESW"[d.below(4)], d.below(9), d.below(90), d.below(1000))
		}
	}
	return b.String()
}
