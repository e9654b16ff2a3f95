package llamasim

import (
	"fmt"
	"net/http"
)

// Figures of a model that does not exist.
const (
	vocabulary    = 2048
	trainedWindow = 131072
)

func (s *Server) page(a *answer) error {
	if s.options.NoUI {
		return errNotFound
	}
	a.send(http.StatusOK, "text/html; charset=utf-8", []byte(
		"<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>llama.cpp</title></head>"+
			"<body><p>This is llamasim, a simulated llama-server. A real one has its chat page here.</p></body></html>\n"))
	return nil
}

func (s *Server) health(a *answer) error {
	a.json([]byte(`{"status":"ok"}`))
	return nil
}

func (s *Server) slotList(a *answer) error {
	a.json(s.slots.body(int(s.window.Load())))
	return nil
}

func (s *Server) models(a *answer) error {
	model := string(appendString(nil, s.options.Model))
	a.json(fmt.Appendf(nil, `{"models":[{"name":%[1]s,"model":%[1]s,"modified_at":"","size":"","digest":"","type":"model",`+
		`"description":"","tags":[""],"capabilities":["completion"],"parameters":"",`+
		`"details":{"parent_model":"","format":"gguf","family":"","families":[""],"parameter_size":"","quantization_level":""}}],`+
		`"object":"list","data":[{"id":%[1]s,"aliases":[%[1]s],"tags":[],"object":"model",`+
		`"architecture":{"input_modalities":["text"],"output_modalities":["text"]},"created":%[2]d,"owned_by":"llamacpp",`+
		`"meta":{"vocab_type":2,"n_vocab":%[3]d,"n_ctx":%[4]d,"n_ctx_train":%[5]d,"n_embd":64,"n_params":338496,`+
		`"size":1353984,"ftype":"all F32"}}]}`,
		model, s.options.Now().Unix(), vocabulary, s.window.Load(), trainedWindow))
	return nil
}

func (s *Server) props(a *answer) error {
	template := s.options.Template
	tools := template != TemplatePlain
	model := string(appendString(nil, s.options.Model))
	defaults, err := parseParams(object{})
	if err != nil {
		return err
	}
	b := appendSampling([]byte(`{"default_generation_settings":{"params":`), samplingShown{
		params:          defaults,
		chatFormat:      "Content-only",
		reasoningFormat: "none",
	})
	b = fmt.Appendf(b, `,"n_ctx":%d},"total_slots":%d,"model_alias":%s,"model_ftype":"all F32","model_path":%s,`+
		`"modalities":{"vision":%t,"video":false,"audio":false},"media_marker":"<__media__>",`+
		`"endpoint_slots":true,"endpoint_props":true,"endpoint_metrics":true,"ui":%t,"ui_settings":{},"chat_template":`,
		s.window.Load(), s.options.Slots, model, model, s.options.ImageTokens > 0, !s.options.NoUI)
	b = appendString(b, template.source())
	b = fmt.Appendf(b, `,"chat_template_caps":{"supports_object_arguments":%[1]t,"supports_parallel_tool_calls":%[1]t,`+
		`"supports_preserve_reasoning":%[2]t,"supports_reasoning_effort":false,"supports_string_content":true,`+
		`"supports_system_role":true,"supports_tool_calls":%[1]t,"supports_tools":%[1]t,"supports_typed_content":false},`+
		`"bos_token":"<|endoftext|>","eos_token":"<|im_end|>","build_info":"`+buildInfo+`","is_sleeping":false,`+
		`"cors_proxy_enabled":false}`, tools, template == TemplateThinking)
	a.json(b)
	return nil
}
