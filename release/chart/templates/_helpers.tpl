{{/* The name of everything of one cell: the release, and the cell if there are any. Takes a dict of root and cell. */}}
{{- define "pawl.name" -}}
{{- printf "%s%s" .root.Release.Name (empty .cell.name | ternary "" (printf "-%s" .cell.name)) | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "pawl.selector" -}}
app.kubernetes.io/name: pawl
app.kubernetes.io/instance: {{ include "pawl.name" . }}
{{- end }}

{{- define "pawl.labels" -}}
{{ include "pawl.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{/* The cells, as JSON, because a template returns text: one without a name if there are none. */}}
{{- define "pawl.cells" -}}
{{- .Values.cells | default (list (dict "name" "" "database" .Values.database)) | toJson }}
{{- end }}

{{- define "pawl.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "pawl.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "pawl.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}
