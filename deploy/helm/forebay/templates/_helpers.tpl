{{- define "forebay.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- /* Names have at most 63 characters. The longest suffix is "-headless". */}}
{{- define "forebay.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else if contains (include "forebay.name" .) .Release.Name }}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "forebay.name" .) | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "forebay.selector" -}}
app.kubernetes.io/name: {{ include "forebay.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "forebay.labels" -}}
{{ include "forebay.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "forebay.serviceAccount" -}}
{{- default (ternary (include "forebay.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name }}
{{- end }}

{{- /*
Number of servers. With an autoscaler it is the present number: without the field Kubernetes would set it to 1, and an upgrade would stop
servers. `helm template` and Argo CD can't look it up and render the larger of `replicas` and `autoscaling.minReplicas`.
*/}}
{{- define "forebay.replicas" -}}
{{- if .Values.autoscaling.enabled }}
{{- $live := lookup "apps/v1" "StatefulSet" .Release.Namespace (include "forebay.fullname" .) | default dict }}
{{- max (int .Values.autoscaling.minReplicas) (int (dig "spec" "replicas" .Values.replicas $live)) }}
{{- else }}
{{- .Values.replicas }}
{{- end }}
{{- end }}

{{- /* "yes" if trainers connect over TCP, empty if they connect to a Unix socket. */}}
{{- define "forebay.tcp" -}}
{{- if not (and (eq .Values.kind "DaemonSet") .Values.socket.enabled) }}yes{{ end }}
{{- end }}

{{- /* Rejects settings that the server would reject, before anything is installed. */}}
{{- define "forebay.check" -}}
{{- if not .Values.datasets }}
{{- fail "datasets is empty: --set datasets.clicks=s3://bucket/clicks" }}
{{- end }}
{{- if not (or .Values.insecure (and .Values.tls.secretName .Values.tokens.secretName)) }}
{{- fail "the server listens on all addresses of the pod: set tls.secretName and tokens.secretName, or insecure=true to let every client read every dataset" }}
{{- end }}
{{- if and .Values.tls.clientAuth (not .Values.tls.secretName) }}
{{- fail "tls.clientAuth requires tls.secretName" }}
{{- end }}
{{- if and (eq .Values.kind "StatefulSet") (not .Values.cache.persistent) (not .Values.cacheDisk) }}
{{- fail "cache.persistent=false requires cacheDisk, less than cache.size: Kubernetes evicts a pod that fills its emptyDir" }}
{{- end }}
{{- if and (eq .Values.kind "StatefulSet") (not .Values.state) (not .Values.cache.persistent) }}
{{- fail "cache.persistent=false requires state: the snapshot manifests and job records would be lost with the pod" }}
{{- end }}
{{- if and (eq .Values.kind "StatefulSet") (not .Values.state) (eq .Values.cache.whenScaled "Delete") }}
{{- fail "cache.whenScaled=Delete requires state: the volume contains the snapshot manifests and job records" }}
{{- end }}
{{- if and .Values.members.enabled (ne .Values.kind "StatefulSet") }}
{{- fail "members.enabled requires kind=StatefulSet: the pods of a DaemonSet have no stable names" }}
{{- end }}
{{- if and .Values.members.enabled (not .Values.state) }}
{{- fail "members.enabled requires state: a ticket of one server has to be valid on the others" }}
{{- end }}
{{- if and .Values.members.enabled .Values.tokens.secretName (not .Values.members.tokenSecret.name) }}
{{- fail "members.enabled with tokens requires members.tokenSecret.name: each server is a client of the others" }}
{{- end }}
{{- if and .Values.members.zone .Values.members.zoneFromPodLabel }}
{{- fail "members.zone and members.zoneFromPodLabel exclude each other" }}
{{- end }}
{{- if and .Values.autoscaling.enabled (not .Values.members.enabled) }}
{{- fail "autoscaling.enabled requires members.enabled: trainers would not use an added server" }}
{{- end }}
{{- if and .Values.autoscaling.enabled (lt (int .Values.autoscaling.maxReplicas) (int .Values.autoscaling.minReplicas)) }}
{{- fail "autoscaling.maxReplicas is less than autoscaling.minReplicas" }}
{{- end }}
{{- if and .Values.socket.enabled (ne .Values.kind "DaemonSet") }}
{{- fail "socket.enabled requires kind=DaemonSet: clients on other nodes cannot connect to a Unix socket" }}
{{- end }}
{{- end }}

{{- /* Adds servers at once, and removes them slowly: the other servers decode the data of a removed server again. */}}
{{- define "forebay.scaling" -}}
scaleUp:
  stabilizationWindowSeconds: 0
  policies:
    - { type: Percent, value: 100, periodSeconds: 60 }
scaleDown:
  stabilizationWindowSeconds: {{ .Values.autoscaling.scaleDownWindowSeconds }}
  policies:
    - { type: Pods, value: 1, periodSeconds: {{ .Values.autoscaling.scaleDownIntervalSeconds }} }
{{- end }}

{{- define "forebay.probe" -}}
{{- if .root.Values.tls.clientAuth }}
tcpSocket: { port: http }
{{- else }}
httpGet:
  path: {{ .path }}
  port: http
  scheme: {{ ternary "HTTPS" "HTTP" (ne .root.Values.tls.secretName "") }}
{{- end }}
periodSeconds: {{ .root.Values.probes.periodSeconds }}
timeoutSeconds: {{ .root.Values.probes.timeoutSeconds }}
{{- end }}

{{- /* The pod template of both kinds. */}}
{{- define "forebay.pod" -}}
metadata:
  labels:
    {{- include "forebay.labels" . | nindent 4 }}
    {{- with .Values.podLabels }}{{ toYaml . | nindent 4 }}{{ end }}
  annotations:
    # The server reads its settings only when it starts. A changed checksum replaces the pods.
    checksum/config: {{ include (print $.Template.BasePath "/configmap.yaml") . | sha256sum }}
    {{- with .Values.podAnnotations }}{{ toYaml . | nindent 4 }}{{ end }}
spec:
  serviceAccountName: {{ include "forebay.serviceAccount" . }}
  # The server does not use the Kubernetes API.
  automountServiceAccountToken: false
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets: {{ toYaml . | nindent 4 }}
  {{- end }}
  # The delay, the grace period of streams, and 15 s for the steps after them.
  terminationGracePeriodSeconds: {{ add .Values.drainDelaySeconds .Values.gracePeriodSeconds 15 }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    fsGroup: 65532
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile: { type: RuntimeDefault }
  containers:
    - name: forebay
      {{- if .Values.image.digest }}
      image: "{{ .Values.image.repository }}@{{ .Values.image.digest }}"
      {{- else }}
      image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
      {{- end }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args: [serve, --config, /etc/forebay/forebay.toml]
      env:
        - { name: FOREBAY_GRPC, value: {{ ternary "0.0.0.0:8815" "unix:/run/forebay/forebay.sock" (eq (include "forebay.tcp" .) "yes") | quote }} }
        - { name: FOREBAY_HTTP, value: "0.0.0.0:8816" }
        - { name: FOREBAY_CACHE_DIR, value: /var/cache/forebay }
        - { name: FOREBAY_GRACE_PERIOD, value: "{{ .Values.gracePeriodSeconds }}s" }
        - { name: FOREBAY_DRAIN_DELAY, value: "{{ .Values.drainDelaySeconds }}s" }
        - { name: FOREBAY_LOG, value: {{ .Values.logLevel | quote }} }
        - { name: FOREBAY_LOG_FORMAT, value: {{ .Values.logFormat }} }
        {{- with .Values.cacheMemory }}
        - { name: FOREBAY_CACHE_MEMORY, value: {{ . | quote }} }
        {{- end }}
        {{- with .Values.cacheDisk }}
        - { name: FOREBAY_CACHE_DISK, value: {{ . | quote }} }
        {{- end }}
        {{- with .Values.state }}
        - { name: FOREBAY_STATE, value: {{ . | quote }} }
        {{- end }}
        {{- with .Values.refreshInterval }}
        - { name: FOREBAY_REFRESH_INTERVAL, value: {{ . | quote }} }
        {{- end }}
        {{- with .Values.networkBandwidth }}
        - { name: FOREBAY_NETWORK_BANDWIDTH, value: {{ . | quote }} }
        {{- end }}
        {{- if .Values.members.enabled }}
        - { name: FOREBAY_MEMBERS, value: "dns:{{ include "forebay.fullname" . }}-members.{{ .Release.Namespace }}.svc:8815" }
        - name: POD_NAME
          valueFrom: { fieldRef: { fieldPath: metadata.name } }
        # The name of the pod in DNS, also while the pod is not ready.
        - { name: FOREBAY_ADVERTISE, value: "$(POD_NAME).{{ include "forebay.fullname" . }}-headless.{{ .Release.Namespace }}.svc:8815" }
        {{- if .Values.members.tokenSecret.name }}
        - { name: FOREBAY_MEMBERSHIP_TOKEN, value: /etc/forebay/member/token }
        {{- end }}
        {{- if and .Values.tls.secretName (not .Values.members.publicCA) }}
        - { name: FOREBAY_MEMBERSHIP_CA, value: /etc/forebay/tls/ca.crt }
        {{- end }}
        {{- with .Values.members.zone }}
        - { name: FOREBAY_ZONE, value: {{ . | quote }} }
        {{- end }}
        {{- if .Values.members.zoneFromPodLabel }}
        - name: FOREBAY_ZONE
          valueFrom: { fieldRef: { fieldPath: "metadata.labels['topology.kubernetes.io/zone']" } }
        {{- end }}
        {{- end }}
        {{- if .Values.tls.secretName }}
        - { name: FOREBAY_TLS_CERTIFICATE, value: /etc/forebay/tls/tls.crt }
        - { name: FOREBAY_TLS_KEY, value: /etc/forebay/tls/tls.key }
        {{- end }}
        {{- if .Values.tls.clientAuth }}
        - { name: FOREBAY_TLS_CLIENT_CA, value: /etc/forebay/tls/ca.crt }
        {{- end }}
        {{- if .Values.tokens.secretName }}
        - { name: FOREBAY_TOKENS, value: /etc/forebay/tokens/tokens.toml }
        {{- end }}
        {{- if .Values.insecure }}
        - { name: FOREBAY_INSECURE, value: "true" }
        {{- end }}
        {{- with .Values.extraEnv }}{{ toYaml . | nindent 8 }}{{ end }}
      {{- with .Values.envFrom }}
      envFrom: {{ toYaml . | nindent 8 }}
      {{- end }}
      ports:
        {{- if include "forebay.tcp" . }}
        - { name: grpc, containerPort: 8815 }
        {{- end }}
        - { name: http, containerPort: 8816 }
      # Opening datasets delays readiness but not liveness, because a restarted server would open them again.
      startupProbe:
        {{- include "forebay.probe" (dict "root" . "path" "/livez") | nindent 8 }}
        failureThreshold: {{ div .Values.probes.startupSeconds .Values.probes.periodSeconds | max 1 }}
      livenessProbe:
        {{- include "forebay.probe" (dict "root" . "path" "/livez") | nindent 8 }}
        failureThreshold: 6
      readinessProbe:
        {{- include "forebay.probe" (dict "root" . "path" "/readyz") | nindent 8 }}
        failureThreshold: 2
      resources: {{ toYaml .Values.resources | nindent 8 }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: { drop: [ALL] }
      volumeMounts:
        - { name: cache, mountPath: /var/cache/forebay }
        - { name: config, mountPath: /etc/forebay/forebay.toml, subPath: forebay.toml, readOnly: true }
        - { name: tmp, mountPath: /tmp }
        {{- if .Values.tls.secretName }}
        - { name: tls, mountPath: /etc/forebay/tls, readOnly: true }
        {{- end }}
        {{- if .Values.tokens.secretName }}
        - { name: tokens, mountPath: /etc/forebay/tokens, readOnly: true }
        {{- end }}
        {{- if and .Values.members.enabled .Values.members.tokenSecret.name }}
        - { name: member-token, mountPath: /etc/forebay/member, readOnly: true }
        {{- end }}
        {{- if not (include "forebay.tcp" .) }}
        - { name: socket, mountPath: /run/forebay }
        {{- end }}
        {{- with .Values.extraVolumeMounts }}{{ toYaml . | nindent 8 }}{{ end }}
  volumes:
    - name: config
      configMap: { name: {{ include "forebay.fullname" . }} }
    - name: tmp
      emptyDir: { medium: Memory, sizeLimit: 64Mi }
    {{- if .Values.tls.secretName }}
    - name: tls
      secret: { secretName: {{ .Values.tls.secretName }}, defaultMode: 0440 }
    {{- end }}
    {{- if .Values.tokens.secretName }}
    - name: tokens
      secret: { secretName: {{ .Values.tokens.secretName }}, defaultMode: 0440 }
    {{- end }}
    {{- if and .Values.members.enabled .Values.members.tokenSecret.name }}
    - name: member-token
      secret:
        secretName: {{ .Values.members.tokenSecret.name }}
        items: [{ key: {{ .Values.members.tokenSecret.key }}, path: token }]
        defaultMode: 0440
    {{- end }}
    {{- if eq .Values.kind "DaemonSet" }}
    - name: cache
      hostPath: { path: {{ .Values.cache.hostPath }}, type: Directory }
    {{- else if not .Values.cache.persistent }}
    - name: cache
      emptyDir: { sizeLimit: {{ .Values.cache.size }} }
    {{- end }}
    {{- if not (include "forebay.tcp" .) }}
    - name: socket
      hostPath: { path: {{ .Values.socket.hostPath }}, type: Directory }
    {{- end }}
    {{- with .Values.extraVolumes }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- with .Values.nodeSelector }}
  nodeSelector: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- if and (eq .Values.kind "StatefulSet") (not .Values.topologySpreadConstraints) }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels: {{ include "forebay.selector" . | nindent 10 }}
  {{- end }}
  {{- with .Values.topologySpreadConstraints }}
  topologySpreadConstraints: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
{{- end }}
