package llamasim

import "strconv"

// samplingShown is what the server shows of how it generates.
type samplingShown struct {
	params           generationParams
	chatFormat       string
	reasoningFormat  string
	generationPrompt string
}

// appendSampling appends the parameters of a generation, most of which mean
// nothing here, as /props and /slots list them.
func appendSampling(b []byte, shown samplingShown) []byte {
	p := shown.params
	limit := strconv.Itoa(p.maxTokens)
	b = append(b, `{"seed":`+p.seed+`,"temperature":`+p.temperature...)
	b = append(b, `,"dynatemp_range":0.0,"dynatemp_exponent":1.0,"top_k":40,"top_p":0.949999988079071,`+
		`"min_p":0.05000000074505806,"top_n_sigma":-1.0,"xtc_probability":0.0,"xtc_threshold":0.10000000149011612,`+
		`"typical_p":1.0,"repeat_last_n":64,"repeat_penalty":1.0,"presence_penalty":0.0,"frequency_penalty":0.0,`+
		`"dry_multiplier":0.0,"dry_base":1.75,"dry_allowed_length":2,"dry_penalty_last_n":64,"mirostat":0,`+
		`"mirostat_tau":5.0,"mirostat_eta":0.10000000149011612,"adaptive_target":-1.0,`+
		`"adaptive_decay":0.8999999761581421,"max_tokens":`+limit+`,"n_predict":`+limit+
		`,"n_keep":0,"n_discard":0,"ignore_eos":`+strconv.FormatBool(p.ignoreEOS)+
		`,"stream":`+strconv.FormatBool(p.stream)+`,"n_probs":0,"min_keep":0,"chat_format":"`+shown.chatFormat+
		`","reasoning_format":"`+shown.reasoningFormat+`","reasoning_in_content":false,"generation_prompt":`...)
	b = appendString(b, shown.generationPrompt)
	return append(b, `,"samplers":["penalties","dry","top_n_sigma","top_k","typ_p","top_p","min_p","xtc","temperature"],`+
		`"speculative.types":"none","timings_per_token":`+strconv.FormatBool(p.timingsPerToken)+
		`,"post_sampling_probs":false,"backend_sampling":false,"lora":[]}`...)
}
