#!/bin/sh
# Holds every locale against en.json: the same keys, the same placeholders.
cd "$(dirname "$0")/../locales" || exit 2
bad=0

keys() { sed -n 's/^ *"\([^"]*\)": .*/\1/p' "$1" | sort; }

# key and placeholders of each line: cart.items {n}
holes() {
	sed -n 's/^ *"\([^"]*\)": "\(.*\)",*$/\1 \2/p' "$1" | while read -r key text; do
		printf '%s %s\n' "$key" "$(printf '%s' "$text" | grep -o '{[a-z]*}' | sort | tr '\n' ' ')"
	done
}

keys en.json > /tmp/teashop.keys.$$
holes en.json > /tmp/teashop.holes.$$
for file in *.json; do
	[ "$file" = en.json ] && continue
	for key in $(keys "$file" | comm -23 /tmp/teashop.keys.$$ -); do
		printf '\033[31m✗\033[0m %s: key \033[1m%s\033[0m is missing\n' "$file" "$key"
		bad=1
	done
	holes "$file" > /tmp/teashop.other.$$
	while read -r line; do
		key=${line%% *}
		mine=$(grep "^$key " /tmp/teashop.other.$$)
		if [ -n "$mine" ] && [ "$mine" != "$line" ] && [ "$mine" != "$line " ]; then
			printf '\033[33m⚠\033[0m %s: %s, but en.json has %s\n' "$file" "$mine" "$line"
			bad=1
		fi
	done < /tmp/teashop.holes.$$
done
rm -f /tmp/teashop.*.$$
[ $bad -eq 0 ] && printf '\033[32m✓\033[0m all locales agree 🍵\n'
exit $bad
